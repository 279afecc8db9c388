// Cheap forms of expensive functions, for values that only ever leave a kernel rounded to 16 or 8
// bits. Each is within a few f32 ulp of the exact function over the normal range, far inside half an
// ulp of such a type; results below 2^-126 may become 0. The emulator runs the exact functions.
#pragma once

#include "math.cuh"

namespace mdf {

#if defined(MDF_EMULATOR)
MDF_DEVICE float loose_exp(float x) { return exp(x); }
MDF_DEVICE float loose_exp2(float x) { return exp2(x); }
MDF_DEVICE float loose_div(float a, float b) { return div(a, b); }
MDF_DEVICE float loose_inverse(float x) { return div(1.0f, x); }
#else
MDF_DEVICE float loose_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MDF_DEVICE float loose_exp(float x) { return loose_exp2(x * 1.4426950408889634f); }
MDF_DEVICE float loose_div(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// 1 / x for a normal x below 2^126: one instruction, without the scaling of loose_div.
MDF_DEVICE float loose_inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// Abramowitz and Stegun 7.1.26: absolute error 1.5e-7. Near 0, where that would be a large part of
// the value, the series erf(x) = 2/sqrt(pi) (x - x^3/3 + x^5/10 - x^7/42) is used.
MDF_DEVICE float loose_erf(float x) {
  const float a = abs(x);
  const float t = loose_inverse(fma(0.3275911f, a, 1.0f));
  float p = fma(1.061405429f, t, -1.453152027f);
  p = fma(p, t, 1.421413741f);
  p = fma(p, t, -0.284496736f);
  p = fma(p, t, 0.254829592f) * t;
  const float far = copysign(fma(-p, loose_exp(-x * x), 1.0f), x);
  const float s = x * x;
  float series = fma(-0.0268661706f, s, 0.112837917f);
  series = fma(fma(series, s, -0.376126389f), s, 1.12837917f);
  return a < 0.3f ? x * series : far;
}

}  // namespace mdf
