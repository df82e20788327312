// The list of matrices that need fallback. Not inlined into the kernels, because it is rarely used.
#include <cstdlib>

#include "kernel.hpp"

namespace autoinv {

void add_fallback(FallbackList& list, int64_t index) {
  if (list.count == list.capacity) {
    const int64_t capacity = list.capacity == 0 ? 16 : 2 * list.capacity;
    void* grown = std::realloc(list.index, static_cast<size_t>(capacity) * sizeof(int64_t));
    if (grown == nullptr) {
      list.out_of_memory = true;
      return;
    }
    list.index = static_cast<int64_t*>(grown);
    list.capacity = capacity;
  }
  list.index[list.count++] = index;
}

void release_fallback(FallbackList& list) {
  std::free(list.index);
  list = FallbackList{};
}

}  // namespace autoinv
