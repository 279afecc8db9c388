// The one include of generated kernels. The same text compiles under NVRTC (C++17, --fmad=false,
// sm_80 and later) and, with MDF_EMULATOR defined, under g++ against csrc/emulator.
//
// KERNEL
//   #include "mdfuse.cuh"
//   extern "C" __global__ void __launch_bounds__(256)
//   name(MDF_IN(mdf::bf16) x, MDF_OUT(mdf::bf16) y, mdf::i64 n, float scale) { ... }
//
//   MDF_IN(T)     const T* __restrict__: read only, and nothing writes what it points to
//   MDF_OUT(T)    T* __restrict__: no other pointer of the kernel reaches it
//   MDF_INOUT(T)  T*: may alias others (in-place writes, counters, mailboxes)
//   const T*      an input that an MDF_INOUT parameter may alias
//   Parameters are pointers, integers, float, double or bool. threadIdx, blockIdx, blockDim and
//   gridDim are CUDA's. A block that reduces or shuffles has a multiple of 32 threads.
//   MDF_IN_BOUNDS(c)  marks a bound predicate: if (MDF_IN_BOUNDS(i < n)) ...; the value of c
//
// TYPES (types.cuh)
//   i8 i16 i32 i64 u8 u16 u32 u64 bool float double; storage bf16 f16 f8e4m3 f8e5m2 c64 c128
//   Compute<T>    float for bf16 f16 f8, T for the others
//   Vec<T, V>     struct { T v[V]; }, V a power of two, aligned to min(16, V * sizeof(T))
//   Limits<T>::lowest, ::highest for integers and bool; infinity<T>(), nan<T>() for float, double
//
// CONVERSION (convert.cuh)
//   to_compute(x)         T -> Compute<T>; Vec<T, V> -> Vec<Compute<T>, V>
//   from_compute<T>(v)    any compute value -> T; Vec<C, V> -> Vec<T, V> (pairs share a conversion)
//   cast<To>(x)           any type -> any type, torch's rules (see convert.cuh)
//
// MEMORY (memory.cuh): i is i32 or i64, p a global pointer or a shared array
//   load<V>(p, i) -> Vec<T, V>      store<V>(p, i, vec)
//   load1(p, i) -> T                store1(p, i, value)
//   atomic_add(p, i, v) -> old      float double i32 u32 i64 u64, global
//   atomic_exchange(p, i, v) -> old u32, global
//   load_relaxed_sys<V>(p, i), store_relaxed_sys<V>(p, i, vec)   4, 8 or 16 bytes, peer mailboxes
//   copy_async<V>(shared, i, p, j)  commit_copies()  wait_copies<N>()   to shared memory, meanwhile
//   load_acquire_sys(p, i), store_release_sys(p, i, v)           u32 flags
//   Generated text must not index a global pointer itself (p[i]): nothing would check it.
//
// ROWS THAT BEGIN ANYWHERE (rows.cuh)
//   load_within<V>(p, i, reach)           aligned; zero for what is outside of p[0, reach)
//   load_across<V>(p, i, reach)           any address, global, V * sizeof(T) a multiple of 16
//   store_within<V>(p, i, vec, place, extent)   aligned; writes what lies in place [0, extent)
//
// GATHER AND SCATTER (scatter.cuh)
//   position<I>(index, extent) -> I   any integer; one outside of [0, extent) ends the launch
//   scatter_store(p, i, value)        several threads may store to one place: one value stays
//   scatter_add(p, i, value)          atomic, every storage type; rounds each sum to the type
//
// SHARED MEMORY
//   MDF_SHARED(T, name, n);          static, n a constant, 16-byte aligned, declared in a function
//   MDF_DYNAMIC_SHARED(T, name, n);  from the start of dynamic shared memory
//   MDF_DYNAMIC_SHARED_AT(T, name, n, byte_offset);
//   name[i] reads and writes. In the emulator it is a proxy, so give a template function of mdf::
//   a variable or load1(name, i), not name[i]. As a parameter: template <class S> f(S scratch).
//
//   Tile<T, ROW, DEPTH, GRAIN, LANES>   filled along one axis, read along the other (tile.cuh)
//     row<V>(tile, b, a) -> Vec, set_row(tile, b, a, vec)   columns<P, V>, set_columns<P, V>(..., Vec[P])
//
// SYNCHRONISATION (sync.cuh)
//   thread_index() block_threads() lane_index() warp_index()   linear, x fastest; u32
//   barrier()  warp_barrier(mask = FULL_MASK)  fence()  fence_sys()
//   shfl_xor(v, lane_mask, mask = FULL_MASK, width = 32)  shfl_down shfl_up (v, delta, ...)
//   shfl_idx(v, lane, ...)  ballot(b, mask = FULL_MASK) -> u32
//   counter_arrive(counters, i, total) -> bool   last-block-done; two barriers; counter back to 0
//   cluster_rank() cluster_size() cluster_barrier() cluster_read(array, i, rank)   sm_90 on
//
// REDUCTION (reduce.cuh): OP is Sum Prod Max Min Any All ArgMax ArgMin WelfordMerge, or any struct
// with identity<T>() and apply(a, b)
//   warp_reduce<OP, WIDTH = 32>(v)                 WIDTH a power of two up to 32
//   block_reduce<OP, THREADS>(v, scratch)          scratch: MDF_SHARED(T, s, THREADS / 32)
//   group_reduce<OP, GROUP, THREADS>(v, scratch)   GROUP consecutive threads own one row
//   group_put<OP>(v, scratch, place), group_get<OP, GROUP, THREADS>(scratch, place)   its two steps
//   group_reduce<OP, GROUP>(v)                     the same for GROUP <= 32
//   Every thread gets the result. More than a warp: one barrier before scratch is written and one
//   after, so the same scratch may be used again at once; all threads of the block have to call.
//   column_reduce<OP, ACROSS, THREADS>(vec, scratch)   thread i has the columns of i % ACROSS; the
//     accumulators vec of threads with the same columns, combined; see columns.cuh for scratch
//   identities<OP, T, V>() -> Vec<T, V>
//   Indexed<T>{value, index}, Indexed32<T> for ArgMax, ArgMin
//   Welford<T>{mean, m2, count}, welford_push(w, x)
//   SumExp<T>{high, sum}, SumExpMerge, sum_exp_push(a, vec); sum_exp_of(a) -> the sum of
//     exp(x - amax x); a.sum is the same with 0 for an infinite amax (online.cuh)
//
// SCANS (scan.cuh): OP is Sum Prod Max Min, or any associative struct as above
//   group_scan<OP, GROUP, THREADS>(vec, carry, scratch) -> Vec   running combination along a group
//   group_scan<OP, GROUP>(vec, carry)                            the same for GROUP <= 32, or 1
//   carry goes in as what came before and out as what came so far. Scratch and barriers as above.
//
// MATH (math.cuh integer.cuh complex.cuh): arguments all of one type
//   float, double: exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos
//     atan sinh cosh tanh asinh acosh atanh erf erfc erfinv erfcinv lgamma frac atan2 nextafter
//     copysign hypot lerp fma div(true)
//   float, double, integers: abs neg sign floor ceil round(half to even) trunc signbit isfinite
//     isnan isinf add sub mul div_trunc div_floor fmod remainder pow minimum maximum clamp
//   integers (and bool where it makes sense): bitwise_and bitwise_or bitwise_xor bitwise_not shl
//     shr gcd
//   complex: complex_of(re, im) add sub mul div reciprocal neg conj lerp real imag abs equal isnan
//     isinf isfinite
//   where(c, a, b) for every type
//   loose_exp(x) loose_div(a, b) loose_erf(x)   float, for values that leave rounded (loose.cuh)
//
// RANDOM (philox.cuh)
//   philox(seed, subsequence, offset) -> Random4{v[4]}
//   uniform(u32) -> float, uniform(u32, u32) -> double, both in [0, 1)
//   draw(seed, offset, index, low, high) -> float or double: element index of a uniform tensor
//   draw_words<V>(seed, offset, index) -> Vec<u32, V>, draw_of(word, low, high) -> float: the same
//   for V elements at once, index and V multiples of 4
//   draw_normal<T>(seed, offset, index) -> T (float, double): the same of a standard normal tensor
//   normal(u32, u32) -> Pair<float>, normal(Random4) -> Pair<double>
#pragma once

#include "platform.cuh"

#include "types.cuh"

#include "columns.cuh"
#include "convert.cuh"
#include "loose.cuh"
#include "math.cuh"
#include "memory.cuh"
#include "online.cuh"
#include "philox.cuh"
#include "reduce.cuh"
#include "rows.cuh"
#include "scatter.cuh"
#include "scan.cuh"
#include "sync.cuh"
#include "tile.cuh"

#define MDF_IN(T) const T* __restrict__
#define MDF_OUT(T) T* __restrict__
#define MDF_INOUT(T) T*
#define MDF_IN_BOUNDS(condition) (condition)
#define MDF_DYNAMIC_SHARED(T, name, n) MDF_DYNAMIC_SHARED_AT(T, name, n, 0)
