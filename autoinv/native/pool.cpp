#include "pool.hpp"

#include "rounding.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#ifndef _WIN32
#include <pthread.h>
#include <signal.h>
#endif

namespace autoinv {
namespace {

constexpr std::chrono::microseconds kSpinTime{50};

// One call's work. Shared, because a worker that wakes late still reads the counter.
struct Job {
  BatchFunction function;
  Batch batch;
  int64_t count;
  int64_t chunk;
  int64_t chunks;
  uint64_t rounding;            // of the caller's thread: denormals flushed or not, and which way it rounds
  std::atomic<int> open_slots;  // workers that may still join
  std::atomic<int64_t> next{0};
  std::mutex mutex;  // guards what follows
  std::condition_variable all_finished;
  std::atomic<int64_t> finished{0};
  FallbackList fallback;

  void work() {
    for (int64_t i = next++; i < chunks; i = next++) run(i);
  }

  void run(int64_t i) {
    FallbackList found;
    function(batch, i * chunk, std::min(count, (i + 1) * chunk), found);
    const std::lock_guard<std::mutex> lock(mutex);
    for (int64_t d = 0; d < found.count; ++d) add_fallback(fallback, found.index[d]);
    fallback.out_of_memory |= found.out_of_memory;
    release_fallback(found);
    if (++finished == chunks) all_finished.notify_all();
  }

  // Every chunk has been begun by now: work() took the last one, or found none left.
  // Spins before it sleeps, because a chunk mostly ends sooner than a sleep and a wake-up take.
  void wait_for_begun_chunks() {
    const auto until = std::chrono::steady_clock::now() + kSpinTime;
    while (finished.load(std::memory_order_relaxed) != chunks && std::chrono::steady_clock::now() < until) {
    }
    std::unique_lock<std::mutex> lock(mutex);
    all_finished.wait(lock, [this] { return finished == chunks; });
  }
};

struct Pool {
  std::atomic<bool> busy{false};
  std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  std::shared_ptr<Job> job;
  uint64_t generation = 0;
  int workers = 0;

  void serve() {
    uint64_t seen = 0;
    for (;;) {
      std::shared_ptr<Job> mine;
      {
        std::unique_lock<std::mutex> lock(mutex);
        wake.wait(lock, [&] { return job != nullptr && generation != seen; });
        seen = generation;
        mine = job;
      }
      if (mine->open_slots.fetch_sub(1) <= 0) continue;
      set_rounding(mine->rounding);
      mine->work();
    }
  }

  void start_workers(int wanted) {
    while (workers < wanted) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;  // the system gives no more threads; those that exist do the work
      } catch (const std::bad_alloc&) {
        return;
      }
      ++workers;
    }
  }

  void publish(const std::shared_ptr<Job>& next, int wanted) {
    const std::lock_guard<std::mutex> lock(mutex);
    start_workers(wanted);
    job = next;
    ++generation;
    if (wanted == 1 && workers == 1) wake.notify_one();
    else wake.notify_all();
  }

  void withdraw() {
    const std::lock_guard<std::mutex> lock(mutex);
    job.reset();
  }
};

// Never destroyed, because workers wait in it when the process exits. A forked child has none of the
// threads and perhaps a locked mutex, so it drops the parent's pool and creates its own.
std::atomic<Pool*> shared_pool{nullptr};

void drop_pool() { shared_pool.store(nullptr); }

#ifndef _WIN32
// Blocks signals in new workers: the program's own threads must handle them.
struct SignalsBlocked {
  sigset_t before;
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
};
#else
struct SignalsBlocked {};
#endif

// Null where there is no memory for one.
Pool* get_pool() {
  Pool* pool = shared_pool.load();
  if (pool != nullptr) return pool;
#ifndef _WIN32
  static const int registered = pthread_atfork(nullptr, nullptr, drop_pool);
  (void)registered;
#endif
  Pool* fresh = new (std::nothrow) Pool;
  if (fresh == nullptr || shared_pool.compare_exchange_strong(pool, fresh)) return fresh;
  delete fresh;  // another thread was first
  return pool;
}

// Whole blocks of lanes for small matrices, and about sixteen chunks per thread, so that a thread that
// is descheduled delays the call little.
int64_t chunk_size(int n, int64_t count, int threads) {
  const int64_t unit = n <= 16 ? 64 : 1;
  const int64_t even = count / (int64_t{16} * threads);
  return std::max(unit, even / unit * unit);
}

// Null where there is no memory for one: nothing may throw through the caller, which has released the GIL.
std::shared_ptr<Job> make_job() {
  try {
    return std::make_shared<Job>();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void run_in_parallel(BatchFunction function, const Batch& batch, int64_t count, int threads,
                     FallbackList& fallback) {
  const int64_t chunk = chunk_size(batch.n, count, threads);
  const int64_t chunks = (count + chunk - 1) / chunk;
  const int workers = static_cast<int>(std::min<int64_t>(threads, chunks)) - 1;
  Pool* pool = workers < 1 ? nullptr : get_pool();
  const std::shared_ptr<Job> job = pool == nullptr ? nullptr : make_job();
  if (job == nullptr || pool->busy.exchange(true)) return function(batch, 0, count, fallback);

  job->function = function;
  job->batch = batch;
  job->count = count;
  job->chunk = chunk;
  job->chunks = chunks;
  job->rounding = get_rounding();
  job->open_slots = workers;
  {
    [[maybe_unused]] const SignalsBlocked blocked;
    pool->publish(job, workers);
  }
  job->work();
  job->wait_for_begun_chunks();
  pool->withdraw();
  pool->busy = false;

  fallback = job->fallback;  // moves the list to the caller
  job->fallback = FallbackList{};
  std::sort(fallback.index, fallback.index + fallback.count);
}

}  // namespace autoinv
