// How this thread's processor rounds: whether denormal numbers are flushed to zero, and in which direction.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace autoinv {

#if defined(__SSE2__)

inline uint64_t get_rounding() {
  constexpr uint64_t kStatus = 0x3f;  // what exceptions were met, which is no setting
  return _mm_getcsr() & ~kStatus;
}
inline void set_rounding(uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }

#elif defined(__aarch64__)

inline uint64_t get_rounding() {
  uint64_t value;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
inline void set_rounding(uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }

#else

inline uint64_t get_rounding() { return 0; }
inline void set_rounding(uint64_t) {}

#endif

}  // namespace autoinv
