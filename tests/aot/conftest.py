"""What the tests of compiled programs read: one compiled here, and lines of the TPU compiler's."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from gpt1_jax.aot.hlo import Module, parse_module

AXES = {"data": 2, "fsdp": 2, "tensor": 2}
TRIPS = 5


@pytest.fixture(scope="session")
def here(devices) -> Module:
    """Products and a reduction in a loop of `TRIPS`, then one collective of each other kind, on AXES."""
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * 3, devices=devices)

    def program(x):  # float32 [16, 4] on every device
        def trip(c, _):
            return jax.lax.psum(jnp.tanh(c @ c.T @ c), "data"), None

        x, _ = jax.lax.scan(trip, x, None, length=TRIPS)
        gathered = jax.lax.all_gather(x, "tensor", tiled=True)
        scattered = jax.lax.psum_scatter(gathered, ("data", "fsdp"), tiled=True)
        passed = jax.lax.ppermute(scattered, "fsdp", [(0, 1), (1, 0)])
        swapped = jax.lax.all_to_all(x.reshape(2, -1), "tensor", 0, 0)
        return passed.sum() + swapped.sum()

    nowhere = PartitionSpec()
    mapped = jax.shard_map(program, mesh=mesh, in_specs=nowhere, out_specs=nowhere, check_vma=False)
    lowered = jax.jit(mapped).lower(jax.ShapeDtypeStruct((16, 4), jnp.float32))
    return parse_module(lowered.compile().as_text())


# Lines that libtpu 0.0.42.1 made of a small step of pre-training on mesh 2 x 2 x 2, their attributes shortened. The
# gather of channel 28 begins before the loop, goes on beside the products in it, and ends after it.
TPU = """\
HloModule jit_train_step, is_scheduled=true

%fused_computation.466 (param_0.1: bf16[192,768]) -> (bf16[192,768], bf16[384,768], s32[2]) {
  %param_0.1 = bf16[192,768]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %all-gather.138 = bf16[384,768]{1,0:T(8,128)(2,1)} all-gather(%param_0.1), channel_id=28, \
replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="1"}
  ROOT %custom-call.39 = (bf16[192,768]{1,0:T(8,128)(2,1)S(1)}, bf16[384,768]{1,0:T(8,128)(2,1)S(1)}, s32[2]{0:S(4)}) \
custom-call(%all-gather.138), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.433 (param_0.2: bf16[192,768], param_1.2: bf16[8,64,32], param_2.2: bf16[8,64,32]) -> \
(bf16[8,6,64,64], bf16[384,768]) {
  %param_0.2 = bf16[192,768]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %param_1.2 = bf16[8,64,6,32]{3,1,2,0:T(8,128)(2,1)S(1)} parameter(1)
  %param_2.2 = bf16[8,64,6,32]{3,1,2,0:T(8,128)(2,1)S(1)} parameter(2)
  %convolution-base-dilated.36 = bf16[8,6,64,64]{2,3,1,0:T(8,128)(2,1)} convolution(%param_1.2, %param_2.2), \
window={size=8x6 stride=7x5 lhs_dilate=8x6}, dim_labels=0b1f_0o1i->01bf
  %all-gather.140 = bf16[384,768]{1,0:T(8,128)(2,1)S(1)} all-gather(%param_0.2), channel_id=28, \
replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="1"}
  ROOT %tuple.354 = (bf16[8,6,64,64]{2,3,1,0:T(8,128)(2,1)}, /*index=1*/bf16[384,768]{1,0:T(8,128)(2,1)S(1)}) \
tuple(%convolution-base-dilated.36, %all-gather.140)
}

%fused_computation.470 (param_0.3: bf16[192,768]) -> bf16[384,768] {
  %param_0.3 = bf16[192,768]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %all-gather.148 = bf16[384,768]{1,0:T(8,128)(2,1)} all-gather(%param_0.3), channel_id=28, \
replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="1"}
  ROOT %custom-call.41 = bf16[384,768]{1,0:T(8,128)(2,1)S(1)} custom-call(%param_0.3, %all-gather.148), \
custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter.2.clone.1 (input_0.2: bf16[768,384]) -> bf16[768,192] {
  %input_0.2 = bf16[768,384]{0,1:T(8,128)(2,1)} parameter(0)
  %all-reduce.195 = bf16[768,384]{0,1:T(8,128)(2,1)} all-reduce(%input_0.2), channel_id=1, \
replica_groups={{0,2},{1,3},{4,6},{5,7}}, use_global_device_ids=true, to_apply=%add.15.clone
  ROOT %dynamic-slice.9 = bf16[768,192]{0,1:T(8,128)(2,1)} dynamic-slice(%all-reduce.195), \
dynamic_slice_sizes={768,192}
}

%condition.34 (param.111: (s32[], f32[8,16])) -> pred[] {
  %constant.520 = s32[]{:T(128)} constant(4)
  %param.111 = (s32[]{:T(128)}, f32[8,16]{1,0:T(8,128)S(1)}) parameter(0)
  %get-tuple-element.2044 = s32[]{:T(128)} get-tuple-element(%param.111), index=0
  ROOT %lt.373 = pred[]{:T(512)} compare(%get-tuple-element.2044, %constant.520), direction=LT
}

%body.35 (param.112: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %param.112 = (s32[]{:T(128)}, f32[8,16]{1,0:T(8,128)S(1)}) parameter(0)
  %get-tuple-element.1 = s32[]{:T(128)} get-tuple-element(%param.112), index=0
  %add.1 = s32[]{:T(128)} add(%get-tuple-element.1, %get-tuple-element.1)
  %get-tuple-element.2 = f32[8,16]{1,0:T(8,128)S(1)} get-tuple-element(%param.112), index=1
  %fusion.433 = (bf16[8,6,64,64]{2,3,1,0:T(8,128)(2,1)}, bf16[384,768]{1,0:T(8,128)(2,1)S(1)}) \
fusion(%get-tuple-element.2), kind=kOutput, calls=%async_collective_fusion.433, \
backend_config={"window_config":{"estimated_cycles":"2973","iteration_bounds":["1","1"]}}
  %all-reduce.205 = f32[8,16]{1,0:T(8,128)S(1)} all-reduce(%get-tuple-element.2), channel_id=6, \
replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%region_31.32.clone
  ROOT %tuple.1 = (s32[]{:T(128)}, f32[8,16]{1,0:T(8,128)S(1)}) tuple(%add.1, %all-reduce.205)
}

ENTRY %main.79_spmd (param.1: bf16[192,768], param.2: bf16[768,384], param.3: f32[8,16]) -> f32[8,16] {
  %param.1 = bf16[192,768]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %param.2 = bf16[768,384]{0,1:T(8,128)(2,1)} parameter(1)
  %param.3 = f32[8,16]{1,0:T(8,128)} parameter(2)
  %constant.1 = s32[]{:T(128)} constant(0)
  %copy.1 = s32[]{:T(128)} copy(%constant.1)
  %copy-start.1 = (f32[8,16]{1,0:T(8,128)S(1)}, f32[8,16]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%param.3)
  %copy-done.1 = f32[8,16]{1,0:T(8,128)S(1)} copy-done(%copy-start.1)
  %async-collective-start.2 = (bf16[192,768]{1,0:T(8,128)(2,1)S(1)}, bf16[384,768]{1,0:T(8,128)(2,1)S(1)}) \
fusion(%param.1), kind=kCustom, calls=%fused_computation.466
  %all-reduce-scatter.2 = bf16[768,192]{0,1:T(8,128)(2,1)} fusion(%param.2), kind=kCustom, \
calls=%all-reduce-scatter.2.clone.1
  %tuple.325 = (s32[]{:T(128)}, f32[8,16]{1,0:T(8,128)S(1)}) tuple(%copy.1, %copy-done.1)
  %while.196 = (s32[]{:T(128)}, f32[8,16]{1,0:T(8,128)S(1)}) while(%tuple.325), condition=%condition.34, body=%body.35
  %async-collective-done.2 = bf16[384,768]{1,0:T(8,128)(2,1)S(1)} fusion(%param.1), kind=kCustom, \
calls=%fused_computation.470
  %attention.1 = f32[8,16]{1,0:T(8,128)S(1)} custom-call(%copy-done.1), custom_call_target="tpu_custom_call"
  %get-tuple-element.9 = f32[8,16]{1,0:T(8,128)S(1)} get-tuple-element(%while.196), index=1
  ROOT %copy.9 = f32[8,16]{1,0:T(8,128)} copy(%get-tuple-element.9), \
backend_config={"window_config":{"estimated_cycles":"100"}}
}
"""


@pytest.fixture(scope="session")
def there() -> Module:
    """`TPU`: a loop of 4 trips, a gather beside it, a reduction that scatters and one that does not, a kernel."""
    return parse_module(TPU)
