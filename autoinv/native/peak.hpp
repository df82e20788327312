// Measures the floating point peak of one core with this instruction set, to compare kernels with.
#pragma once

#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

// Twelve chains hide a latency of four cycles or more on two pipes, and fit sixteen registers.
template <class T>
int64_t measure_fma(int64_t iterations) {
  constexpr int kChains = 12;
  using V = Vector<T>;
  V sums[kChains];
  V factor = broadcast<T>(T(0.999)), term = broadcast<T>(T(1e-3));
  __asm__ volatile("" : "+m"(factor), "+m"(term));  // not constants, so that nothing is folded
  const V f = factor, t = term;
  unroll<0, kChains>([&](auto i) AUTOINV_LAMBDA { sums[i.value] = broadcast<T>(T(i.value)); });
  for (int64_t i = 0; i < iterations; ++i) {
    unroll<0, kChains>([&](auto c) AUTOINV_LAMBDA { sums[c.value] = add_product<T>(t, sums[c.value], f); });
  }
  V total = {};
  unroll<0, kChains>([&](auto i) AUTOINV_LAMBDA { total += sums[i.value]; });
  __asm__ volatile("" : "+m"(total));
  return iterations * kChains * Simd<T>::lanes * 2;
}

}  // namespace AUTOINV_SET
}  // namespace autoinv
