"""How the tests have XLA compile, most of the time of small ones: without optimising, and once for all processes."""

import atexit
import os
import shutil
import tempfile

import jax

_QUICK = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if jax.__version_info__ < (0, 11):  # later ones know no such flag, and stop at one that they do not know
    _QUICK.append("--xla_cpu_use_fusion_emitters=false")  # 40 % less time to compile a step for eight devices


def quick(n_devices: int = 1) -> str:
    """A value of XLA_FLAGS for `n_devices` simulated devices. It is read when JAX's backends start."""
    return " ".join([f"--xla_force_host_platform_device_count={n_devices}", *_QUICK])


def share_compiled() -> None:
    """Has this process and all that it starts keep what they compile in one folder, which goes with this process."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # one that a worker was given, or a developer's own
        return
    folder = tempfile.mkdtemp(prefix="gpt1_jax_compiled_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
