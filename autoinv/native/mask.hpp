// One boolean per lane: a mask register on AVX-512, a vector of all-ones and zeros elsewhere.
//
// GCC 12 compiles GNU vector comparisons to mask registers only where they are used at once; stored
// and combined they would go through full vectors. Both kinds support & | ~.
#pragma once

#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

#if defined(__AVX512F__)

template <class T>
struct MaskOf {
  using Type = __mmask8;
};
template <>
struct MaskOf<float> {
  using Type = __mmask16;
};
template <class T>
using Mask = typename MaskOf<T>::Type;

template <class T>
AUTOINV_INLINE Mask<T> greater(Vector<T> a, Vector<T> b) {  // false where either is NaN
  if constexpr (sizeof(T) == 8) return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ);
  else return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

template <class T>
AUTOINV_INLINE Mask<T> equal(Integers<T> a, Integers<T> b) {
  if constexpr (sizeof(T) == 8) return _mm512_cmpeq_epi64_mask((__m512i)a, (__m512i)b);
  else return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b);
}

template <class T>
AUTOINV_INLINE Vector<T> select(Mask<T> mask, Vector<T> yes, Vector<T> no) {
  if constexpr (sizeof(T) == 8) return _mm512_mask_mov_pd(no, mask, yes);
  else return _mm512_mask_mov_ps(no, mask, yes);
}

template <class T>
AUTOINV_INLINE Integers<T> select(Mask<T> mask, Integers<T> yes, Integers<T> no) {
  if constexpr (sizeof(T) == 8) return (Integers<T>)_mm512_mask_mov_epi64((__m512i)no, mask, (__m512i)yes);
  else return (Integers<T>)_mm512_mask_mov_epi32((__m512i)no, mask, (__m512i)yes);
}

template <class T>
AUTOINV_INLINE bool all(Mask<T> mask) {
  return mask == Mask<T>(-1);
}

template <class T>
AUTOINV_INLINE bool lane(Mask<T> mask, int l) {
  return (mask >> l & 1) != 0;
}

#else

template <class T>
using Mask = Integers<T>;

template <class T>
AUTOINV_INLINE Mask<T> greater(Vector<T> a, Vector<T> b) {
  return a > b;
}

template <class T>
AUTOINV_INLINE Mask<T> equal(Integers<T> a, Integers<T> b) {
  return a == b;
}

template <class T>
AUTOINV_INLINE Vector<T> select(Mask<T> mask, Vector<T> yes, Vector<T> no) {
  return mask ? yes : no;
}

template <class T>
AUTOINV_INLINE Integers<T> select(Mask<T> mask, Integers<T> yes, Integers<T> no) {
  return mask ? yes : no;
}

template <class T>
AUTOINV_INLINE bool all(Mask<T> mask) {
#if defined(__AVX__)
  return _mm256_testc_si256((__m256i)mask, _mm256_set1_epi32(-1));
#else
  typedef int64_t Words __attribute__((vector_size(16)));
  const Words words = (Words)mask;
  return (words[0] & words[1]) == -1;
#endif
}

template <class T>
AUTOINV_INLINE bool lane(Mask<T> mask, int l) {
  return mask[l] != 0;
}

#endif

}  // namespace AUTOINV_SET
}  // namespace autoinv
