"""Random local programs, each as IR and as eager torch calls with error bars, for property tests.

The oracle never looks at how the package computes anything. A value is known as eager torch gives
it (dtype, shape, strides, storage), as f64 torch gives it, and with a doubt: how far a right result
may be from that, because types are narrow and kernels may or may not round between two ops.
"""
