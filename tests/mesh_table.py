"""Prints how far ten updates on every mesh of eight devices are from ten on one: `python tests/mesh_table.py`."""

import conftest  # noqa: F401  (asks for eight CPU devices, before JAX starts)
from jobs import LM, TASK, Layout, differences

MESHES = ((8, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2), (1, 1, 8), (1, 2, 4))
LAYOUTS = [Layout(mesh, zero) for mesh in MESHES for zero in (False, True) if mesh[0] > 1 or not zero]
JOBS = {"pre-training": LM, "fine-tuning": TASK}


def main() -> None:
    """One line for each mesh and job."""
    print("Largest difference from one device, float32: of any metric in ten updates, of any parameter after them.\n")
    columns = ["data x fsdp x tensor", "optimizer over data", *(f"{job}: loss | parameters" for job in JOBS)]
    print(f"| {' | '.join(columns)} |\n{'|---' * (2 + 2 * len(JOBS))}|")
    for layout in LAYOUTS:
        found = [f"{x:.1e}" for job in JOBS.values() for x in differences(job, layout)]
        where = ["x".join(map(str, layout.mesh)), "yes" if layout.zero else "no"]
        print(f"| {' | '.join(where + found)} |", flush=True)


if __name__ == "__main__":
    main()
