// Threads that work on one instruction at a time, each on a part of it.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fpgapipe_model {

// Rounding and flushing of the processor while instructions run: see model_lanes.hpp.
class Arithmetic {
  public:
#if defined(__x86_64__)
    Arithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80 | 0x8040); }
    ~Arithmetic() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#endif
};

class Threads {
  public:
    static Threads& all() {
        // It is never destroyed: threads may wait in it when the process ends.
        static Threads* const threads = new Threads;
        return *threads;
    }

    // Set the number of threads, and how much work in ns pays for one.
    void set(int number, int64_t pays_ns) {
        number_ = number;
        pays_ns_ = pays_ns;
    }

    // Call `work` with parts of the numbers from 0 to `count`, each of which takes about `unit_ns`.
    template <typename Work>
    void share(int64_t count, int64_t unit_ns, const Work& work) {
        int64_t helpers = count;
        if (pays_ns_ && count * unit_ns / pays_ns_ < count) helpers = count * unit_ns / pays_ns_;
        if (helpers > number_) helpers = number_;
        if (helpers < 2 || !mine_.try_lock()) {
            if (count) work(int64_t(0), count);
            return;
        }
        std::lock_guard<std::mutex> held(mine_, std::adopt_lock);
        start();
        const int64_t parts = count < 4 * helpers ? count : 4 * helpers;
        next_ = 0;
        job_ = [&] {
            for (int64_t part; (part = next_.fetch_add(1)) < parts;)
                work(count * part / parts, count * (part + 1) / parts);
        };
        {
            std::lock_guard<std::mutex> locked(mutex_);
            wanted_ = int(helpers) - 1;
            busy_ = 0;
            ++jobs_;
        }
        wake_.notify_all();
        job_();
        std::unique_lock<std::mutex> locked(mutex_);
        wanted_ = 0; // who has not begun need not
        done_.wait(locked, [&] { return busy_ == 0; });
    }

  private:
    void start() {
        // A forked process has none of its parent's threads.
        if (process_ != getpid()) {
            process_ = getpid();
            started_ = 0;
        }
        for (; started_ < number_ - 1; ++started_) std::thread([this] { serve(); }).detach();
    }

    void serve() {
        const Arithmetic arithmetic;
        uint64_t seen = 0;
        std::unique_lock<std::mutex> locked(mutex_);
        for (;;) {
            wake_.wait(locked, [&] { return jobs_ != seen && wanted_ > 0; });
            seen = jobs_;
            --wanted_;
            ++busy_;
            locked.unlock();
            job_();
            locked.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex mine_, mutex_;
    std::condition_variable wake_, done_;
    std::function<void()> job_;
    std::atomic<int64_t> next_{0};
    uint64_t jobs_ = 0;
    int64_t pays_ns_ = 40'000;
    int wanted_ = 0, busy_ = 0, number_ = 1, started_ = 0;
    pid_t process_ = getpid();
};

} // namespace fpgapipe_model
