// Runs several devices in lock-step: cluster.py builds this library and calls it through ctypes.
//
// A device is given by a pointer and the functions of its library (native.cpp with its design), and
// belongs to a part. All parts run for a window of cycles, each in some thread; then the beats that
// wires between them have accepted are handed to the other ends. The devices of a part do the same
// in shorter windows. A beat takes at least a window to arrive, so neither the number of threads nor
// the length of windows has any effect on what a device sees.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint64_t never = UINT64_MAX;

// These structures have the layouts of those in cluster_library.py. Functions is Member's `calls`.
struct Functions {
    uint64_t (*run)(void*, uint64_t, int);
    int (*access)(void*, uint32_t, uint32_t*, int, uint64_t, int);
    uint64_t (*cycle)(const void*);
    const void* (*flying)(void*, uint32_t, uint64_t*);
    void (*taken)(void*, uint32_t);
    void (*give)(void*, uint32_t, const void*, uint64_t);
    void (*state)(void*, void*);
};
struct Member {
    void* device;
    Functions call;
    uint64_t awaited;  // whether a run waits for its interrupt
    uint64_t part;     // devices of one part run in one thread
};
struct Route {
    uint64_t source, source_port, target, target_port;
    uint64_t window;  // cycles for which its ends may run without each other, at most
};
struct Reading {
    uint64_t index;  // place of the register in its list
    uint64_t cycle;  // cycle in which the reading began
    uint64_t value;
};
// State of a device; it has the layout of native.cpp's structure of the same name.
struct State {
    uint64_t irq_cycle;
    uint64_t active_cycle;
    uint64_t failed;
};
enum Reason : uint64_t { CYCLES, INTERRUPTS, TIME, FAILED, STALLED };

// Registers of a device that are read periodically while it runs.
struct Poll {
    std::vector<uint32_t> addresses;
    std::vector<uint32_t> last;  // values of the last readings
    bool keeps = false;             // whether readings are stored
    std::vector<Reading> readings;
    uint64_t changed = 0;  // cycle of the last reading that differed from the one before
    size_t next = never;   // index of the register to read next; beyond the list if none is due
    uint64_t begun = 0;    // cycle in which its reading began
    bool open = false;     // whether a reading has begun and continues in the next window
};

// What runs in windows: the devices of a thread with the wires between them; or all parts, with the
// wires between those.
struct Part {
    std::vector<uint64_t> members;
    std::vector<Route> routes;
    uint64_t window = never;
    uint64_t moved = 0;  // cycle of the last beat from a device without watched registers

    void add(const Route& route) {
        routes.push_back(route);
        window = std::min(window, route.window);
    }
};

// A register is read only if this many cycles are left in the round, after which the bus may be
// needed for other accesses.
constexpr uint64_t access_cycles = 24;

// Limit, in cycles, for completing a pending reading whose value is not needed.
constexpr uint64_t access_limit = 1000;

// Wait until done(number) is true. To sleep and be woken takes a good part of a short window, so a
// thread polls for a hundred microseconds first, and for some more while nobody else wants its core.
template <class F>
void await(std::atomic<uint64_t>& number, F&& done) {
    for (int i = 0; i < 2000; ++i) {
        if (done(number)) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    for (int i = 0; i < 2000; ++i) {
        if (done(number)) return;
        std::this_thread::yield();
    }
    for (;;) {
        const uint64_t seen = number;
        if (done(seen)) return;
        number.wait(seen);
    }
}

// A team of threads, one of which is the caller. Each call is a turn, in which every job is done
// once. A turn ends when all its jobs are done, even if some threads have not started it yet: on a
// busy machine, the caller may do all jobs alone.
template <class F>
class Team {
  public:
    Team(unsigned threads, uint64_t jobs, F job)
        : job_(std::move(job)),
          jobs_(jobs),
          stride_(threads),
          claimed_(std::make_unique<std::atomic<uint64_t>[]>(jobs)) {
        for (unsigned i = 1; i < threads; ++i)
            threads_.emplace_back([this, i] { follow(i); });
    }
    ~Team() {
        ends_ = true;
        begin_turn();
        for (std::thread& thread : threads_) thread.join();
    }
    void operator()() {
        done_ = 0;
        begin_turn();
        work(0, turn_);
        await(done_, [this](uint64_t done) { return done == jobs_; });
    }

  private:
    void begin_turn() {
        turn_.fetch_add(1);
        turn_.notify_all();
    }

    void follow(unsigned thread) {
        uint64_t last = 0;
        for (;;) {
            await(turn_, [last](uint64_t turn) { return turn != last; });
            last = turn_;
            if (ends_) return;
            work(thread, last);
        }
    }

    // Do the jobs that are assigned to this thread, then those that are left.
    void work(unsigned thread, uint64_t turn) {
        for (uint64_t i = thread; i < jobs_; i += stride_) claim(i, turn);
        for (uint64_t i = 0; i < jobs_; ++i) claim(i, turn);
    }

    // Each job can be claimed once per turn, so a late thread finds no job of a turn that is over.
    void claim(uint64_t number, uint64_t turn) {
        uint64_t before = turn - 1;
        if (!claimed_[number].compare_exchange_strong(before, turn)) return;
        job_(number);
        if (done_.fetch_add(1) + 1 == jobs_) done_.notify_one();
    }

    F job_;
    const uint64_t jobs_;
    const unsigned stride_;
    std::unique_ptr<std::atomic<uint64_t>[]> claimed_;  // by job, the last turn that claimed it
    std::atomic<uint64_t> turn_ = 0;
    std::atomic<uint64_t> done_ = 0;
    std::atomic<bool> ends_ = false;
    std::vector<std::thread> threads_;
};

class Cluster {
  public:
    Cluster(const Member* members, uint64_t count, const Route* routes, uint64_t num_routes,
            uint64_t window, uint64_t round, uint64_t threads)
        : members_(members, members + count),
          round_(round),
          threads_(unsigned(std::max<uint64_t>(1, std::min(threads, count)))),
          watch_(count),
          sample_(count) {
        for (Poll& poll : sample_) poll.keeps = true;
        between_.window = shortest_ = window;
        for (uint64_t number = 0; number < count; ++number) {
            const uint64_t part = members[number].part;
            if (part >= parts_.size()) parts_.resize(part + 1);
            parts_[part].members.push_back(number);
        }
        for (const Route* route = routes; route != routes + num_routes; ++route) {
            const uint64_t source = members[route->source].part, target = members[route->target].part;
            (source == target ? parts_[source] : between_).add(*route);
            shortest_ = std::min(shortest_, route->window);
        }
    }

    // Set the registers of a device to be sampled (`keeps` 1), or the watched ones, whose change
    // shows that the device makes progress (`keeps` 0).
    void poll(uint64_t device, const uint32_t* addresses, uint64_t count, uint64_t keeps) {
        Poll& poll = (keeps ? sample_ : watch_)[device];
        finish(device, access_limit);
        poll.next = never;
        poll.addresses.assign(addresses, addresses + count);
        poll.last.assign(count, 0);
    }

    void sample_every(uint64_t cycles) {
        sample_cycles_ = cycles;
        sample_next_ = cycle_;
    }

    std::vector<Reading>& readings(uint64_t device) { return sample_[device].readings; }

    // The values of a device's watched registers when they were read last.
    const std::vector<uint32_t>& watched(uint64_t device) const { return watch_[device].last; }

    void reset() {
        cycle_ = 0;
        for (auto* polls : {&watch_, &sample_}) {
            for (Poll& poll : *polls) {
                poll.next = never;
                poll.open = false;
                poll.changed = 0;
                poll.readings.clear();
            }
        }
        sample_next_ = sample_cycles_ ? 0 : never;
    }

    uint64_t cycle() const { return cycle_; }

    // Last cycle in which something was found to move, or in which the run began.
    uint64_t moved() const {
        uint64_t moved = std::max(moved_, between_.moved);
        for (const Part& part : parts_) moved = std::max(moved, part.moved);
        return moved;
    }

    // The state between two runs, without that of the devices, as words. Registers that were being
    // read when a run ended are read further when the next one begins.
    const std::vector<uint64_t>& save() {
        saved_ = {cycle_, sample_next_, sample_cycles_};
        for (auto* polls : {&watch_, &sample_}) {
            for (const Poll& poll : *polls) {
                saved_.insert(saved_.end(), {poll.changed, poll.next, poll.begun, poll.open});
                saved_.push_back(poll.last.size());
                saved_.insert(saved_.end(), poll.last.begin(), poll.last.end());
            }
        }
        return saved_;
    }

    // Continue from a state; returns whether it fits the registers that are read periodically.
    bool restore(const uint64_t* words, uint64_t count) {
        const uint64_t* end = words + count;
        const auto next = [&] { return words < end ? *words++ : 0; };
        cycle_ = next();
        sample_next_ = next();
        sample_cycles_ = next();
        for (auto* polls : {&watch_, &sample_}) {
            for (Poll& poll : *polls) {
                poll.changed = next();
                poll.next = next();
                poll.begun = next();
                poll.open = next();
                if (next() != poll.last.size() || uint64_t(end - words) < poll.last.size())
                    return false;
                for (uint32_t& value : poll.last) value = next();
                poll.readings.clear();
            }
        }
        return words == end;
    }

    // Begin a run: the cycles of a stall are counted from here.
    void begin(uint64_t stall_cycles) {
        stall_cycles_ = stall_cycles;
        moved_ = cycle_;
        for (Part& part : parts_) part.moved = 0;
        between_.moved = 0;
        watch_next_ = stall_cycles ? cycle_ : never;
    }

    // Run for a number of cycles. The run ends earlier if all awaited interrupts are high at the
    // end of a round, if `seconds` have passed, if a device fails or if the cluster stalls.
    Reason run(uint64_t cycles, bool until_irq, double seconds) {
        using clock = std::chrono::steady_clock;
        const auto last = clock::now() + std::chrono::duration<double>(seconds);
        const uint64_t end = cycle_ + cycles;
        if (until_irq && all_high()) return INTERRUPTS;
        Team team(threads_, parts_.size(), [this](uint64_t number) { advance(parts_[number]); });
        while (cycle_ < end) {
            round_end_ = std::min(cycle_ + round_, end);
            begin_polls(sample_, sample_next_, sample_cycles_);
            begin_polls(watch_, watch_next_, std::max<uint64_t>(stall_cycles_ / 4, 1));
            while (cycle_ < round_end_) {
                target_ = std::min(cycle_ + between_.window, round_end_);
                team();
                exchange(between_, target_);
                if (has_failed()) return FAILED;
                cycle_ = target_;
            }
            if (until_irq && all_high()) return INTERRUPTS;
            if (stall_cycles_ && stalls()) return STALLED;
            if (clock::now() >= last) return cycle_ < end ? TIME : CYCLES;
        }
        return CYCLES;
    }

    // Access a register of a device; all other devices run as well. Returns the response, -1 after
    // an error, or -2 if there is no response within `limit` cycles.
    int access(uint64_t number, uint32_t address, uint32_t* value, bool write, uint64_t limit) {
        const int code = finish(number, limit);
        return code < 0 ? code : access_alone(number, address, value, write, limit);
    }

  private:
    // Complete a pending reading of a device and skip the registers that would be read after it.
    int finish(uint64_t number, uint64_t limit) {
        for (Poll* poll : {&watch_[number], &sample_[number]}) {
            if (!poll->open) continue;
            uint32_t ignored = 0;
            const int code = access_alone(number, 0, &ignored, false, limit);
            if (code < 0) return code;
            poll->open = false;
            poll->next = never;
        }
        return 0;
    }

    int access_alone(uint64_t number, uint32_t address, uint32_t* value, bool write,
                     uint64_t limit) {
        const Member& member = members_[number];
        int code = -2;
        while (code == -2 && limit) {
            const uint64_t most = std::min(shortest_, limit);
            code = member.call.access(member.device, address, value, write, most, true);
            if (code == -1) return code;
            target_ = member.call.cycle(member.device);
            limit -= target_ - cycle_;
            for (const Member& other : members_) {
                if (&other != &member) other.call.run(other.device, target_ - cycle_, false);
            }
            for (Part& part : parts_) exchange(part, target_);
            exchange(between_, target_);
            if (has_failed()) return -1;
            cycle_ = target_;
        }
        return code;
    }

    void begin_polls(std::vector<Poll>& polls, uint64_t& next, uint64_t period) {
        if (next > cycle_) return;
        next = cycle_ + period;
        for (Poll& poll : polls) {
            if (poll.next >= poll.addresses.size()) poll.next = 0;
        }
    }

    // Run the devices of a part to the end of the window; a device that has failed stays behind.
    void advance(Part& part) {
        for (uint64_t now = cycle_; now < target_;) {
            now += std::min(part.window, target_ - now);
            for (uint64_t number : part.members) advance(number, now);
            exchange(part, now);
        }
    }

    // Run a device to a cycle.
    void advance(uint64_t number, uint64_t target) {
        const Member& member = members_[number];
        if (sample_[number].open || !ask(watch_[number], number, target))
            ask(sample_[number], number, target);
        const uint64_t now = member.call.cycle(member.device);
        if (now < target) member.call.run(member.device, target - now, false);
    }

    // Read registers while there is time left; returns whether the bus must not be used further.
    bool ask(Poll& poll, uint64_t number, uint64_t target) {
        const Member& member = members_[number];
        while (poll.next < poll.addresses.size()) {
            const uint64_t now = member.call.cycle(member.device);
            if (!poll.open) {
                if (now + access_cycles > round_end_) return true;
                poll.begun = now;
            }
            uint32_t value = 0;
            const int code = member.call.access(member.device, poll.addresses[poll.next], &value,
                                                false, target - now, true);
            poll.open = code == -2;
            if (code < 0) return true;
            if (code == 0) {
                if (poll.last[poll.next] != value) poll.changed = poll.begun;
                poll.last[poll.next] = value;
                if (poll.keeps) poll.readings.push_back({poll.next, poll.begun, value});
            }
            ++poll.next;
        }
        return false;
    }

    // Hand the beats on the wires of a part to their receivers.
    void exchange(Part& part, uint64_t now) {
        for (const Route& route : part.routes) {
            const Member &source = members_[route.source], &target = members_[route.target];
            uint64_t count = 0;
            const void* beats = source.call.flying(source.device, route.source_port, &count);
            if (!count) continue;
            target.call.give(target.device, route.target_port, beats, count);
            source.call.taken(source.device, route.source_port);
            if (watch_[route.source].addresses.empty()) part.moved = now;
        }
    }

    bool has_failed() const {
        for (const Member& member : members_) {
            if (state_of(member).failed) return true;
        }
        return false;
    }

    static State state_of(const Member& member) {
        State state;
        member.call.state(member.device, &state);
        return state;
    }

    bool all_high() const {
        for (const Member& member : members_) {
            if (member.awaited && state_of(member).irq_cycle == never) return false;
        }
        return true;
    }

    // Whether, for `stall_cycles_` cycles, no memory bus was active, no watched register changed
    // and no wire accepted a beat from a device without watched registers.
    bool stalls() {
        for (uint64_t i = 0; i < members_.size(); ++i) {
            const uint64_t active = state_of(members_[i]).active_cycle;
            if (active != never) moved_ = std::max(moved_, active);
            moved_ = std::max(moved_, watch_[i].changed);
        }
        return cycle_ - moved() >= stall_cycles_;
    }

    const std::vector<Member> members_;
    std::vector<Part> parts_;
    Part between_;
    uint64_t shortest_;  // window of all devices, in which one of them alone is accessed
    const uint64_t round_;
    const unsigned threads_;

    std::vector<uint64_t> saved_;
    uint64_t cycle_ = 0;  // cycle at which all devices are between two windows
    uint64_t target_ = 0, round_end_ = 0;

    std::vector<Poll> watch_, sample_;
    uint64_t watch_next_ = never, sample_next_ = never;
    uint64_t sample_cycles_ = 0;
    uint64_t stall_cycles_ = 0;
    uint64_t moved_ = 0;
};

}  // namespace

EXPORT Cluster* fpgapipe_cluster_create(const Member* members, uint64_t count, const Route* routes,
                                        uint64_t num_routes, uint64_t window, uint64_t round,
                                        uint64_t threads) {
    return new Cluster(members, count, routes, num_routes, window, round, threads);
}
EXPORT void fpgapipe_cluster_destroy(Cluster* cluster) { delete cluster; }
EXPORT void fpgapipe_cluster_reset(Cluster* cluster) { cluster->reset(); }
EXPORT uint64_t fpgapipe_cluster_cycle(const Cluster* cluster) { return cluster->cycle(); }
EXPORT uint64_t fpgapipe_cluster_moved(const Cluster* cluster) { return cluster->moved(); }
EXPORT void fpgapipe_cluster_poll(Cluster* cluster, uint64_t device, const uint32_t* addresses,
                                  uint64_t count, uint64_t keeps) {
    cluster->poll(device, addresses, count, keeps);
}
EXPORT void fpgapipe_cluster_sample(Cluster* cluster, uint64_t cycles) {
    cluster->sample_every(cycles);
}
EXPORT const Reading* fpgapipe_cluster_readings(Cluster* cluster, uint64_t device,
                                                uint64_t* count) {
    *count = cluster->readings(device).size();
    return cluster->readings(device).data();
}
EXPORT const uint32_t* fpgapipe_cluster_watched(const Cluster* cluster, uint64_t device) {
    return cluster->watched(device).data();
}
EXPORT void fpgapipe_cluster_forget(Cluster* cluster, uint64_t device) {
    cluster->readings(device).clear();
}
EXPORT const uint64_t* fpgapipe_cluster_save(Cluster* cluster, uint64_t* count) {
    *count = cluster->save().size();
    return cluster->save().data();
}
EXPORT int fpgapipe_cluster_restore(Cluster* cluster, const uint64_t* words, uint64_t count) {
    return cluster->restore(words, count);
}
EXPORT void fpgapipe_cluster_begin(Cluster* cluster, uint64_t stall_cycles) {
    cluster->begin(stall_cycles);
}
EXPORT uint64_t fpgapipe_cluster_run(Cluster* cluster, uint64_t cycles, int until_irq,
                                     double seconds) {
    return cluster->run(cycles, until_irq, seconds);
}
EXPORT int fpgapipe_cluster_access(Cluster* cluster, uint64_t device, uint32_t address,
                                   uint32_t* value, int write, uint64_t limit) {
    return cluster->access(device, address, value, write, limit);
}
