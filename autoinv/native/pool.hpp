// A small pool of threads that helps one caller at a time.
#pragma once

#include "kernel.hpp"

namespace autoinv {

// Inverts `count` matrices in chunks on at most `threads` threads, the caller's among them. The
// caller waits only for chunks that a worker has begun, so a worker that is not scheduled costs
// nothing. Where the pool is busy with another caller, the caller works alone.
void invert_in_parallel(InvertFunction invert, const Batch& batch, int64_t count, int threads,
                        Doubtful& doubtful);

}  // namespace autoinv
