// A small pool of threads that serves one caller at a time.
#pragma once

#include "kernel.hpp"

namespace autoinv {

// Calls `function` for `count` matrices in chunks on at most `threads` threads, the caller's among
// them. The caller waits only for chunks that a worker has begun, so a worker that is not scheduled
// costs nothing. Where the pool serves another caller, this one works alone.
void run_in_parallel(BatchFunction function, const Batch& batch, int64_t count, int threads,
                     FallbackList& fallback);

}  // namespace autoinv
