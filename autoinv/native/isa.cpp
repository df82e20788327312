#include "isa.hpp"

#include <atomic>
#include <cstring>

namespace autoinv {

// What kernels.cpp defines for each set; the flags come from CMakeLists.txt.
#define AUTOINV_SET_OF_KERNELS(set, flags)                                        \
  namespace set {                                                                 \
  extern const Kernels kernels_float, kernels_double;                             \
  static const KernelSet kernels = {#set, flags, {&kernels_float, &kernels_double}}; \
  }

AUTOINV_SET_OF_KERNELS(baseline, AUTOINV_FLAGS_BASELINE)
#ifdef AUTOINV_X86_SETS
AUTOINV_SET_OF_KERNELS(avx2, AUTOINV_FLAGS_AVX2)
AUTOINV_SET_OF_KERNELS(avx512, AUTOINV_FLAGS_AVX512)
#endif

SetList compiled_sets() {
#ifdef AUTOINV_X86_SETS
  return {{&baseline::kernels, &avx2::kernels, &avx512::kernels}, 3};
#else
  return {{&baseline::kernels}, 1};
#endif
}

// The features behind the flags in CMakeLists.txt; the operating system's support is included.
SetList runnable_sets() {
  SetList list = {{&baseline::kernels}, 1};
#ifdef AUTOINV_X86_SETS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  if (avx2) list.sets[list.count++] = &avx2::kernels;
  if (avx512) list.sets[list.count++] = &avx512::kernels;
#endif
  return list;
}

static std::atomic<const KernelSet*> in_use{nullptr};

const KernelSet& current_set() {
  const KernelSet* set = in_use.load(std::memory_order_relaxed);
  if (set == nullptr) {  // two threads that get here store the same value
    const SetList list = runnable_sets();
    set = list.sets[list.count - 1];
    in_use.store(set, std::memory_order_relaxed);
  }
  return *set;
}

bool use_set(const char* name) {
  const SetList list = runnable_sets();
  for (int i = 0; i < list.count; ++i) {
    if (std::strcmp(list.sets[i]->name, name) == 0) {
      in_use.store(list.sets[i], std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace autoinv
