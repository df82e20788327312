// Which compiled kernel sets this machine can run, and the one in use.
#pragma once

#include "kernel.hpp"

namespace autoinv {

constexpr int kMaxSets = 3;

struct SetList {
  const KernelSet* sets[kMaxSets];  // widest last
  int count;
};

SetList compiled_sets();
SetList runnable_sets();

const KernelSet& current_set();
// False when no runnable set has that name; the current one then stays.
bool use_set(const char* name);

}  // namespace autoinv
