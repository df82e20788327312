// The steps of the lane kernels in order, for one block or for several at once.
#pragma once

#include "lanes.hpp"

namespace autoinv {
namespace AUTOINV_SET {

// Fills x from a, and `good`, for blocks that are independent: their steps alternate, so that the
// processor finds work in one while the other waits for a quotient.
template <class T, int N, int Count>
AUTOINV_INLINE void invert_lanes(Lanes<T, N> (&block)[Count]) {
  const auto each = [&](auto step) AUTOINV_LAMBDA {
    unroll<0, Count>([&](auto b) AUTOINV_LAMBDA { step(block[b.value]); });
  };
  const auto each_column = [&](auto step) AUTOINV_LAMBDA {
    Lanes<T, N>::for_columns([&](int c) AUTOINV_LAMBDA {
      each([&](Lanes<T, N>& lanes) AUTOINV_LAMBDA { step(lanes, c); });
    });
  };
  each([](Lanes<T, N>& lanes) AUTOINV_LAMBDA { lanes.start(); });
  each_column([](Lanes<T, N>& lanes, int c) AUTOINV_LAMBDA {
    lanes.prefetch_next(lanes.next_src, c, false);
    lanes.factor_column(c);
  });
  each_column([](Lanes<T, N>& lanes, int c) AUTOINV_LAMBDA {
    if (c < N - 2) lanes.order_multipliers(c);
  });
  each_column([](Lanes<T, N>& lanes, int c) AUTOINV_LAMBDA {
    lanes.prefetch_next(lanes.next_dst, c, true);
    lanes.solve_column(c);
  });
  if constexpr (Lanes<T, N>::kOrderInLanes) {
    each_column([](Lanes<T, N>& lanes, int r) AUTOINV_LAMBDA { lanes.order_row(r); });
  }
  each([](Lanes<T, N>& lanes) AUTOINV_LAMBDA { lanes.finish(); });
}

}  // namespace AUTOINV_SET
}  // namespace autoinv
