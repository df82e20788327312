// The vector types of one instruction set, as GNU vector extensions.
//
// Why those and no library: GCC and Clang lower them to the set they compile for (masks, FMA and
// permutes included), they add no dependency to the wheel's build, and one source serves SSE2,
// AVX2, AVX-512 and NEON. Each set has a namespace of its own, so that no function compiled for a
// wide set is linked into code that runs on a narrow machine.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// scripts/check_native overrides these: with forced inlining, a sanitizer build takes many minutes.
#ifndef AUTOINV_INLINE
#define AUTOINV_INLINE inline __attribute__((always_inline))
#define AUTOINV_LAMBDA __attribute__((always_inline))
#endif

namespace autoinv {
namespace AUTOINV_SET {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
struct Simd;

template <>
struct Simd<float> {
  static constexpr int lanes = kVectorBytes / 4;
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef float Unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  using Integer = int32_t;
  typedef int32_t Int __attribute__((vector_size(kVectorBytes)));
  static constexpr int32_t magnitude_bits = 0x7fffffff;
  static constexpr float epsilon = 0x1p-23f;
  // Matrices with pivots outside these bounds need fallback: the reciprocals, or products of a few
  // of them, could leave the range of normal numbers.
  static constexpr float smallest_pivot = 0x1p-120f;
  static constexpr float largest_pivot = 0x1p120f;
};

template <>
struct Simd<double> {
  static constexpr int lanes = kVectorBytes / 8;
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef double Unaligned __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  using Integer = int64_t;
  typedef int64_t Int __attribute__((vector_size(kVectorBytes)));
  static constexpr int64_t magnitude_bits = 0x7fffffffffffffff;
  static constexpr double epsilon = 0x1p-52;
  static constexpr double smallest_pivot = 0x1p-1000;
  static constexpr double largest_pivot = 0x1p1000;
};

template <class T>
using Vector = typename Simd<T>::Vector;
template <class T>
using Integers = typename Simd<T>::Int;
template <class T>
using Integer = typename Simd<T>::Integer;

template <class T>
AUTOINV_INLINE Vector<T> load(const T* from) {
  return *reinterpret_cast<const typename Simd<T>::Unaligned*>(from);
}

template <class T>
AUTOINV_INLINE void store(T* to, Vector<T> value) {
  *reinterpret_cast<typename Simd<T>::Unaligned*>(to) = value;
}

template <class T>
AUTOINV_INLINE Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}

template <class T>
AUTOINV_INLINE Vector<T> magnitude(Vector<T> value) {
  return (Vector<T>)((Integers<T>)value & Simd<T>::magnitude_bits);
}

template <class T>
AUTOINV_INLINE Integer<T> bits_of(T value) {
  Integer<T> bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <class T, int... I>
AUTOINV_INLINE Integers<T> lane_numbers(std::integer_sequence<int, I...>) {
  return Integers<T>{I...};
}

template <class T>
AUTOINV_INLINE Integers<T> lane_numbers() {
  return lane_numbers<T>(std::make_integer_sequence<int, Simd<T>::lanes>{});
}

// sum + a * b and sum - a * b, rounded once where the set has fused operations, else twice. Written out, and
// contraction by the compiler is off: kernels that do the same steps on an element then agree in every bit.
template <class T>
AUTOINV_INLINE Vector<T> add_product(Vector<T> sum, Vector<T> a, Vector<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 8) return _mm512_fmadd_pd(a, b, sum);
  else return _mm512_fmadd_ps(a, b, sum);
#elif defined(__FMA__)
  if constexpr (sizeof(T) == 8) return _mm256_fmadd_pd(a, b, sum);
  else return _mm256_fmadd_ps(a, b, sum);
#elif defined(__aarch64__)
  if constexpr (sizeof(T) == 8) return (Vector<T>)vfmaq_f64((float64x2_t)sum, (float64x2_t)a, (float64x2_t)b);
  else return (Vector<T>)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return sum + a * b;
#endif
}

template <class T>
AUTOINV_INLINE Vector<T> subtract_product(Vector<T> sum, Vector<T> a, Vector<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 8) return _mm512_fnmadd_pd(a, b, sum);
  else return _mm512_fnmadd_ps(a, b, sum);
#elif defined(__FMA__)
  if constexpr (sizeof(T) == 8) return _mm256_fnmadd_pd(a, b, sum);
  else return _mm256_fnmadd_ps(a, b, sum);
#elif defined(__aarch64__)
  if constexpr (sizeof(T) == 8) return (Vector<T>)vfmsq_f64((float64x2_t)sum, (float64x2_t)a, (float64x2_t)b);
  else return (Vector<T>)vfmsq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return sum - a * b;
#endif
}

// The larger of two magnitudes; `best` is never negative. The intrinsics take one instruction where
// GCC 12 compiles `a > b ? a : b` to two or three. A NaN in `value` may be ignored.
template <class T>
AUTOINV_INLINE Vector<T> larger_magnitude(Vector<T> best, Vector<T> value) {
#if defined(__AVX512DQ__)
  constexpr int kMaxMagnitudeSignCleared = 0b1011;
  if constexpr (sizeof(T) == 8) return _mm512_range_pd(best, value, kMaxMagnitudeSignCleared);
  else return _mm512_range_ps(best, value, kMaxMagnitudeSignCleared);
#elif defined(__AVX__)
  if constexpr (sizeof(T) == 8) return _mm256_max_pd(magnitude<T>(value), best);
  else return _mm256_max_ps(magnitude<T>(value), best);
#else
  const Vector<T> candidate = magnitude<T>(value);
  return candidate > best ? candidate : best;
#endif
}

// A compile-time loop: the arrays it indexes can then live in registers.
template <int Value>
struct Index {
  static constexpr int value = Value;
};

template <int Begin, class Body, int... I>
AUTOINV_INLINE void unroll_sequence(Body& body, std::integer_sequence<int, I...>) {
  (body(Index<Begin + I>{}), ...);
}

template <int Begin, int End, class Body>
AUTOINV_INLINE void unroll(Body body) {
  if constexpr (Begin < End) unroll_sequence<Begin>(body, std::make_integer_sequence<int, End - Begin>{});
}

}  // namespace AUTOINV_SET
}  // namespace autoinv
