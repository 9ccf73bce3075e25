"""How the tests have XLA compile: most of the time of small ones is compilation, so that they do without optimising."""

import jax

_QUICK = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if jax.__version_info__ < (0, 11):  # later ones know no such flag, and stop at one that they do not know
    _QUICK.append("--xla_cpu_use_fusion_emitters=false")  # 40 % less time to compile a step for eight devices


def quick(n_devices: int = 1) -> str:
    """A value of XLA_FLAGS for `n_devices` simulated devices. It is read when JAX's backends start."""
    return " ".join([f"--xla_force_host_platform_device_count={n_devices}", *_QUICK])
