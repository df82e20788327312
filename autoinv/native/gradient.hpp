// The backward of the inverse: dst = -X^T G X^T, one matrix at a time.
// Source: Giles, "Collected matrix derivative results for forward and reverse mode AD", 2.2.3.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T>
struct Gradient {
  static constexpr int L = Simd<T>::lanes;
  static constexpr int kMaxLd = (kMaxN + L - 1) / L * L;
  using V = Vector<T>;

  alignas(64) T g[kMaxN * kMaxLd];
  alignas(64) T transposed[kMaxN * kMaxLd];  // X^T
  alignas(64) T product[kMaxN * kMaxLd];     // X^T G

  // to = left right, all with `ld` elements a row, right padded with zeros.
  AUTOINV_INLINE void multiply(const T* left, const T* right, T* to, int n, int ld) {
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < ld; c += L) {
        V sum = {};
        for (int k = 0; k < n; ++k) sum += left[r * ld + k] * *(const V*)(right + k * ld + c);
        *(V*)(to + r * ld + c) = sum;
      }
    }
  }

  AUTOINV_INLINE void run(const T* x, const T* gradient, T* dst, int n, int ld) {
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < n; ++c) {
        g[r * ld + c] = gradient[r * n + c];
        transposed[c * ld + r] = x[r * n + c];
      }
    }
    multiply(transposed, g, product, n, ld);
    multiply(product, transposed, g, n, ld);
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < n; ++c) dst[r * n + c] = -g[r * ld + c];
    }
  }
};

template <class T>
void gradient(const void* x, const void* g, void* dst, int n, int64_t batch) {
  Gradient<T> state;
  const int ld = (n + state.L - 1) / state.L * state.L;
  for (int i = 0; i < n * ld; i += state.L) {
    *(Vector<T>*)(state.g + i) = Vector<T>{};
    *(Vector<T>*)(state.transposed + i) = Vector<T>{};
  }
  const int64_t size = int64_t{n} * n;
  for (int64_t i = 0; i < batch; ++i) {
    state.run(static_cast<const T*>(x) + i * size, static_cast<const T*>(g) + i * size,
              static_cast<T*>(dst) + i * size, n, ld);
  }
}

}  // namespace AUTOINV_SET
}  // namespace autoinv
