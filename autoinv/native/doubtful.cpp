// The list of matrices that are left to torch. Out of the kernels' way: it is rarely touched.
#include <cstdlib>

#include "kernel.hpp"

namespace autoinv {

void add_doubtful(Doubtful& list, int64_t index) {
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

void release_doubtful(Doubtful& list) {
  std::free(list.index);
  list = Doubtful{};
}

}  // namespace autoinv
