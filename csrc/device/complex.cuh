// Complex arithmetic: what torch's complex numbers do on a GPU. Transcendental functions are ATen's.
#pragma once

#include "math.cuh"

namespace mdf {

#define MDF_COMPLEX(T) template <class T> MDF_DEVICE typename When<is_complex<T>, T>::type
#define MDF_COMPLEX_PART(T) \
  template <class T> MDF_DEVICE typename When<is_complex<T>, decltype(T::re)>::type
#define MDF_COMPLEX_TEST(T) template <class T> MDF_DEVICE typename When<is_complex<T>, bool>::type

MDF_DEVICE c64 complex_of(float re, float im) { return c64{re, im}; }
MDF_DEVICE c128 complex_of(double re, double im) { return c128{re, im}; }
MDF_COMPLEX(T) neg(T x) { return T{-x.re, -x.im}; }
MDF_COMPLEX(T) conj(T x) { return T{x.re, -x.im}; }
MDF_COMPLEX(T) add(T a, T b) { return T{a.re + b.re, a.im + b.im}; }
MDF_COMPLEX(T) sub(T a, T b) { return T{a.re - b.re, a.im - b.im}; }
MDF_COMPLEX(T) mul(T a, T b) {
  return T{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// Smith's method, which does not overflow where the quotient does not.
MDF_COMPLEX(T) div(T a, T b) {
  using R = decltype(T::re);
  if (abs(b.re) >= abs(b.im)) {
    if (b.re == R(0) && b.im == R(0)) return T{a.re / abs(b.re), a.im / abs(b.im)};
    const R ratio = b.im / b.re;
    const R scale = R(1) / (b.re + b.im * ratio);
    return T{(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  const R ratio = b.re / b.im;
  const R scale = R(1) / (b.re * ratio + b.im);
  return T{(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
// 0 for what has an infinite part, NaN where a part is NaN or both are infinite: torch's choice.
MDF_COMPLEX(T) reciprocal(T x) {
  using R = decltype(T::re);
  const bool both = isinf(x.re) && isinf(x.im);
  if (both || isnan(x.re) || isnan(x.im)) return T{nan<R>(), nan<R>()};
  if (isinf(x.re) || isinf(x.im)) return T{R(0), R(0)};
  return div(T{R(1), R(0)}, x);
}
MDF_COMPLEX(T) lerp(T a, T b, T weight) {
  using R = decltype(T::re);
  const T way = sub(b, a);
  if (weight.re * weight.re + weight.im * weight.im < R(0.25)) return add(a, mul(weight, way));
  return sub(b, mul(way, sub(T{R(1), R(0)}, weight)));
}
MDF_COMPLEX_PART(T) real(T x) { return x.re; }
MDF_COMPLEX_PART(T) imag(T x) { return x.im; }
MDF_COMPLEX_PART(T) abs(T x) { return hypot(x.re, x.im); }
MDF_COMPLEX_TEST(T) equal(T a, T b) { return a.re == b.re && a.im == b.im; }
MDF_COMPLEX_TEST(T) isnan(T x) { return isnan(x.re) || isnan(x.im); }
MDF_COMPLEX_TEST(T) isinf(T x) { return isinf(x.re) || isinf(x.im); }
MDF_COMPLEX_TEST(T) isfinite(T x) { return isfinite(x.re) && isfinite(x.im); }

}  // namespace mdf
