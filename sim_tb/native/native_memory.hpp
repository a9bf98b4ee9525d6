// The memory at the design's AXI4 master, as native.cpp uses it.
//
// The documentation of NativeDevice in native.py defines its behaviour. In every cycle, the memory
// first drives its side of the bus, which depends on its state only; then it processes the
// transfers that the rising edge will complete.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "native_archive.hpp"

namespace {

using fpgapipe::Archive;

constexpr uint64_t never = UINT64_MAX;
constexpr unsigned page_bytes = 4096;
enum Response : uint8_t { OKAY = 0, SLVERR = 2, DECERR = 3 };

// Configuration of a device; it has the layout of native_library.py's structure of the same name.
struct Config {
    uint8_t* memory;
    uint64_t memory_bytes;
    uint64_t rate_numerator;  // bytes per cycle of a port, of reads and writes together
    uint64_t rate_denominator;
    uint64_t read_latency;
    uint64_t write_latency;
    uint64_t outstanding;  // bursts of each direction
    uint64_t pause;        // chance of a pause in a cycle, in 1/4096
    uint64_t seed;
    uint64_t banks;  // 0 if banks are not modelled
    uint64_t bank_bytes;
    uint64_t bank_cycles;
};

// Statistics; they have the layout of native_library.py's RawStatistics.
struct Statistics {
    uint64_t cycle;  // since the last reset
    uint64_t read_bursts, write_bursts;
    uint64_t read_beats, write_beats;
    uint64_t first_read_cycle, last_read_cycle;
    uint64_t first_write_cycle, last_write_cycle;
    uint64_t read_wait_cycles;   // cycles in which read data waited for the design
    uint64_t write_wait_cycles;  // cycles in which the design waited with write data
    uint64_t active_cycle;       // cycle of the last handshake on the memory bus
    uint64_t reads_in_flight, writes_in_flight;
    uint64_t irq;
    uint64_t irq_cycle;  // first cycle since which irq is high

    // Count what happened at another port of the same memory.
    void add(const Statistics& other);
};

// The later one of two cycles, either of which may be `never`.
uint64_t later(uint64_t one, uint64_t other) {
    return one == never || other == never ? std::min(one, other) : std::max(one, other);
}

void Statistics::add(const Statistics& other) {
    read_bursts += other.read_bursts, write_bursts += other.write_bursts;
    read_beats += other.read_beats, write_beats += other.write_beats;
    first_read_cycle = std::min(first_read_cycle, other.first_read_cycle);
    last_read_cycle = later(last_read_cycle, other.last_read_cycle);
    first_write_cycle = std::min(first_write_cycle, other.first_write_cycle);
    last_write_cycle = later(last_write_cycle, other.last_write_cycle);
    read_wait_cycles += other.read_wait_cycles, write_wait_cycles += other.write_wait_cycles;
    active_cycle = later(active_cycle, other.active_cycle);
    reads_in_flight += other.reads_in_flight, writes_in_flight += other.writes_in_flight;
}

// Number of cycles since the last reset, and the first error.
struct Status {
    uint64_t cycle = 0;
    std::string error;

    void fail(const std::string& what) {
        if (error.empty()) error = "cycle " + std::to_string(cycle) + ": " + what;
    }
};

template <class V, class = void>
struct HasMemory : std::false_type {};
template <class V>
struct HasMemory<V, std::void_t<decltype(std::declval<V&>().m_axi_araddr)>> : std::true_type {};

template <class V, class = void>
struct HasIds : std::false_type {};
template <class V>
struct HasIds<V, std::void_t<decltype(std::declval<V&>().m_axi_arid)>> : std::true_type {};

template <class V, class = void>
struct HasTwoPorts : std::false_type {};
template <class V>
struct HasTwoPorts<V, std::void_t<decltype(std::declval<V&>().m_axi1_araddr)>> : std::true_type {};

// The second memory port of a design, with the names of the first one's signals.
template <class V>
struct SecondPort {
#define SIGNALS(DO)                                                                           \
    DO(arvalid) DO(arready) DO(arid) DO(araddr) DO(arlen) DO(arsize) DO(arburst)              \
    DO(rvalid) DO(rready) DO(rid) DO(rdata) DO(rresp) DO(rlast)                               \
    DO(awvalid) DO(awready) DO(awid) DO(awaddr) DO(awlen) DO(awsize) DO(awburst)              \
    DO(wvalid) DO(wready) DO(wdata) DO(wstrb) DO(wlast) DO(bvalid) DO(bready) DO(bid)
#define DECLARE(name) decltype((std::declval<V&>().m_axi1_##name)) m_axi_##name;
#define BIND(name) m_axi_##name(top.m_axi1_##name),
    SIGNALS(DECLARE) DECLARE(bresp)
    explicit SecondPort(V& top) : SIGNALS(BIND) m_axi_bresp(top.m_axi1_bresp) {}
#undef BIND
#undef DECLARE
#undef SIGNALS
};

// Bytes per beat. A port is a uint32_t, uint64_t or VlWide<N>, whose bytes are in the bus's order.
template <class V>
constexpr unsigned bus_bytes() {
    if constexpr (HasMemory<V>::value) {
        return sizeof(std::remove_reference_t<decltype(std::declval<V&>().m_axi_rdata)>);
    } else {
        return 1;
    }
}

template <class T>
class Queue {
  public:
    void resize(size_t capacity) {
        size_t size = 1;
        while (size < capacity) size *= 2;
        items_.resize(size);
        clear();
    }
    void clear() { begin_ = end_ = 0; }
    bool empty() const { return begin_ == end_; }
    size_t size() const { return end_ - begin_; }
    T& front() { return items_[begin_ & (items_.size() - 1)]; }
    void archive(Archive& archive) { archive(items_, begin_, end_); }
    void push(const T& item) { items_[end_++ & (items_.size() - 1)] = item; }
    void pop() { ++begin_; }

  private:
    std::vector<T> items_;
    size_t begin_ = 0, end_ = 0;
};

struct Burst {
    uint64_t address;   // address of the next beat, aligned to the bus width
    uint64_t unusable;  // strobes of the next beat that lie before the burst's first byte
    uint64_t due;       // first cycle in which read data, or the response to a write, may appear
    uint32_t beats_left;
    uint32_t id;
    uint32_t bank;
    bool begun;  // whether a beat has been shown (read) or accepted (write)
    uint8_t response;
};

// Signals of an address channel, as the design drives them.
struct Request {
    bool waits;
    uint64_t address;
    uint32_t id;
    uint8_t length, size, burst;
    bool operator!=(const Request& other) const {
        return address != other.address || length != other.length || id != other.id ||
               size != other.size || burst != other.burst;
    }
};

struct Fault {
    uint64_t begin, end;
    uint8_t response;
    bool reads, writes;
};

// V is the Verilated design, whose ports are read and written in place.
template <class V>
class Memory {
  public:
    Memory(V& top, const Config& config, Status& status)
        : top_(top), config_(config), status_(status) {
        reads_.resize(config.outstanding);
        writes_.resize(config.outstanding);
        responses_.resize(config.outstanding);
        beat_cost_ = bus_bytes<V>() * config.rate_denominator;
        clear();
    }

    void clear() {
        statistics_ = {};
        statistics_.first_read_cycle = statistics_.last_read_cycle = never;
        statistics_.first_write_cycle = statistics_.last_write_cycle = never;
        statistics_.active_cycle = never;
        reads_.clear();
        writes_.clear();
        responses_.clear();
        read_request_ = write_request_ = {};
        credit_ = 0;
        bank_free_.assign(config_.banks, 0);
        read_shown_ = response_shown_ = data_waits_ = false;
        read_turn_ = true;
        random_ = config_.seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du;
        random_ |= random_ == 0;
        top_.m_axi_arready = top_.m_axi_rvalid = top_.m_axi_rlast = top_.m_axi_rresp = 0;
        top_.m_axi_awready = top_.m_axi_wready = top_.m_axi_bvalid = top_.m_axi_bresp = 0;
    }

    void inject(const Fault& fault) { faults_.push_back(fault); }
    void heal() { faults_.clear(); }

    uint64_t active_cycle() const { return statistics_.active_cycle; }

    // The bytes of the memory itself are not part of it.
    void archive(Archive& archive) {
        reads_.archive(archive);
        writes_.archive(archive);
        responses_.archive(archive);
        archive(statistics_, faults_, bank_free_, read_request_, write_request_, credit_, random_,
                read_shown_, response_shown_, read_turn_, data_waits_, waiting_last_,
                waiting_strobes_, waiting_data_);
    }

    Statistics statistics() const {
        Statistics copy = statistics_;
        copy.reads_in_flight = reads_.size();
        copy.writes_in_flight = writes_.size() + responses_.size();
        return copy;
    }

    // Drive the memory's side of the bus for this cycle, which depends on the memory's state only.
    void offer() {
        V& t = top_;
        if (config_.pause) {
            random_ ^= random_ << 13;
            random_ ^= random_ >> 7;
            random_ ^= random_ << 17;
        }
        // A beat may make the credit negative, and later cycles make up for it. So the average rate
        // is exact under load, while an idle bus accumulates no more than the bytes of one cycle.
        const int64_t rate = config_.rate_numerator;
        credit_ = std::min(credit_ + rate, rate);

        t.m_axi_arready = reads_.size() < config_.outstanding && !pauses(0);
        t.m_axi_awready = writes_.size() + responses_.size() < config_.outstanding && !pauses(1);

        const uint64_t cycle = status_.cycle;
        const bool can_read = !read_shown_ && !reads_.empty() && reads_.front().due <= cycle &&
                              may_go_on(reads_.front()) && !pauses(2);
        const bool can_write = !writes_.empty() && may_go_on(writes_.front()) && !pauses(3);
        bool reads = can_read && credit_ > 0;
        bool writes = can_write && credit_ > 0;
        if (reads && writes && credit_ <= beat_cost_) {
            // The credit suffices for one of the two. The design's wvalid is still that of the last
            // cycle's end; its value only decides which direction goes first.
            reads = !t.m_axi_wvalid || read_turn_;
            writes = !reads;
        }
        if (reads) {
            credit_ -= beat_cost_;
            read_turn_ = false;
            begin(reads_.front());
            show_read();
            writes = writes && may_go_on(writes_.front());
        }
        t.m_axi_rvalid = read_shown_;
        t.m_axi_wready = writes;

        if (!response_shown_ && !responses_.empty() && responses_.front().due <= cycle &&
            !pauses(4)) {
            response_shown_ = true;
            t.m_axi_bresp = responses_.front().response;
            if constexpr (HasIds<V>::value) t.m_axi_bid = responses_.front().id;
        }
        t.m_axi_bvalid = response_shown_;
    }

    // Process the transfers that the rising edge will complete.
    void take() {
        V& t = top_;
        const uint64_t cycle = status_.cycle;
        bool active = false;

        if (t.m_axi_arvalid || read_request_.waits) {
            Request now{true, t.m_axi_araddr, 0, t.m_axi_arlen, t.m_axi_arsize, t.m_axi_arburst};
            if constexpr (HasIds<V>::value) now.id = t.m_axi_arid;
            if (request(read_request_, now, t.m_axi_arvalid, t.m_axi_arready, "ar")) {
                Burst burst = burst_of(now);
                burst.due = cycle + config_.read_latency;
                reads_.push(burst);
                ++statistics_.read_bursts;
                active = true;
            }
        }

        if (read_shown_) {
            if (t.m_axi_rready) {
                read_shown_ = false;
                Burst& burst = reads_.front();
                burst.address += bus_bytes<V>();
                if (--burst.beats_left == 0) reads_.pop();
                if (statistics_.read_beats++ == 0) statistics_.first_read_cycle = cycle;
                statistics_.last_read_cycle = cycle;
                active = true;
            } else {
                ++statistics_.read_wait_cycles;
            }
        }

        if (t.m_axi_wvalid || data_waits_) active |= take_data();

        if (t.m_axi_awvalid || write_request_.waits) {
            Request now{true, t.m_axi_awaddr, 0, t.m_axi_awlen, t.m_axi_awsize, t.m_axi_awburst};
            if constexpr (HasIds<V>::value) now.id = t.m_axi_awid;
            if (request(write_request_, now, t.m_axi_awvalid, t.m_axi_awready, "aw")) {
                writes_.push(burst_of(now));
                ++statistics_.write_bursts;
                active = true;
            }
        }

        if (response_shown_ && t.m_axi_bready) {
            response_shown_ = false;
            responses_.pop();
            active = true;
        }
        if (active) statistics_.active_cycle = cycle;
    }

  private:
    // Parts of the one random number per cycle decide the pauses of the five channels.
    bool pauses(unsigned channel) const {
        return ((random_ >> (12 * channel)) & 0xFFF) < config_.pause;
    }

    // Whether a burst may move data: it has begun already, or its bank is free.
    bool may_go_on(const Burst& burst) const {
        return !config_.banks || burst.begun || bank_free_[burst.bank] <= status_.cycle;
    }

    // Called for each beat of a burst that moves; the first one makes the burst's bank busy.
    void begin(Burst& burst) {
        if (!config_.banks || burst.begun) return;
        burst.begun = true;
        bank_free_[burst.bank] = status_.cycle + config_.bank_cycles;
    }

    void show_read() {
        V& t = top_;
        Burst& burst = reads_.front();
        read_shown_ = true;
        const uint8_t response = response_of(burst.address, false);
        if (response == OKAY) {
            std::memcpy(&t.m_axi_rdata, config_.memory + burst.address, bus_bytes<V>());
        } else {
            std::memset(&t.m_axi_rdata, 0, bus_bytes<V>());
        }
        t.m_axi_rresp = response;
        t.m_axi_rlast = burst.beats_left == 1;
        if constexpr (HasIds<V>::value) t.m_axi_rid = burst.id;
    }

    uint8_t response_of(uint64_t address, bool write) const {
        if (address >= config_.memory_bytes) return DECERR;
        for (const Fault& fault : faults_) {
            if ((write ? fault.writes : fault.reads) && address < fault.end &&
                fault.begin < address + bus_bytes<V>())
                return fault.response;
        }
        return OKAY;
    }

    // Check an address channel of the design; returns whether a request is accepted.
    bool request(Request& last, const Request& now, bool valid, bool ready, const char* name) {
        const auto wrong = [&](const std::string& what) {
            status_.fail(std::string("m_axi_") + name + what);
            return false;
        };
        if (last.waits && !valid) return wrong("valid fell before ready rose");
        if (last.waits && last != now)
            return wrong("addr, len, size, burst or id changed while valid waited for ready");
        last = now;
        last.waits = !ready;
        if (last.waits) return false;
        const unsigned bytes = bus_bytes<V>();
        const uint64_t begin = now.address & ~uint64_t{bytes - 1};
        const uint64_t end = begin + (now.length + uint64_t{1}) * bytes;
        if (now.burst != 1)
            return wrong("burst must be 1 (INCR), not " + std::to_string(now.burst));
        if ((1u << now.size) != bytes)
            return wrong("size must be that of the bus, " + std::to_string(bytes) +
                         " bytes, not " + std::to_string(1u << now.size));
        if (begin / page_bytes != (end - 1) / page_bytes)
            return wrong("addr " + hex(now.address) + ": a burst of " +
                         std::to_string(end - begin) + " bytes crosses a boundary of 4 KiB");
        return true;
    }

    static std::string hex(uint64_t value) {
        char text[24];
        std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
        return text;
    }

    Burst burst_of(const Request& request) const {
        const uint64_t offset = request.address & (bus_bytes<V>() - 1);
        const uint64_t bank =
            config_.banks ? request.address / config_.bank_bytes % config_.banks : 0;
        return {request.address - offset,
                (uint64_t{1} << offset) - 1,
                0,
                request.length + 1u,
                request.id,
                uint32_t(bank),
                false,
                OKAY};
    }

    bool wrong_data(const char* what) {
        status_.fail(std::string("m_axi_") + what);
        return false;
    }

    // Process the write data channel; returns whether a beat is accepted.
    bool take_data() {
        V& t = top_;
        const uint64_t strobes = t.m_axi_wstrb;
        if (data_waits_ && !t.m_axi_wvalid) return wrong_data("wvalid fell before wready rose");
        if (data_waits_ &&
            (strobes != waiting_strobes_ || bool(t.m_axi_wlast) != waiting_last_ ||
             std::memcmp(waiting_data_, &t.m_axi_wdata, bus_bytes<V>()) != 0))
            return wrong_data("wdata, wstrb or wlast changed while wvalid waited for wready");
        if (!t.m_axi_wready) {
            if (!data_waits_) {
                data_waits_ = true;
                waiting_strobes_ = strobes;
                waiting_last_ = t.m_axi_wlast;
                std::memcpy(waiting_data_, &t.m_axi_wdata, bus_bytes<V>());
            }
            ++statistics_.write_wait_cycles;
            return false;
        }
        data_waits_ = false;
        credit_ -= beat_cost_;
        read_turn_ = true;
        Burst& burst = writes_.front();
        begin(burst);
        if (t.m_axi_wlast && burst.beats_left != 1)
            return wrong_data("wlast is high before the last beat of a burst");
        if (!t.m_axi_wlast && burst.beats_left == 1)
            return wrong_data("wlast is low in the last beat of a burst");
        if (strobes & burst.unusable)
            return wrong_data("wstrb selects bytes before the burst's address");
        const uint8_t response = response_of(burst.address, true);
        if (response == OKAY) {
            store(config_.memory + burst.address, strobes);
        } else {
            burst.response = std::max(burst.response, response);
        }
        burst.address += bus_bytes<V>();
        burst.unusable = 0;
        if (--burst.beats_left == 0) {
            burst.due = status_.cycle + config_.write_latency;
            responses_.push(burst);
            writes_.pop();
        }
        if (statistics_.write_beats++ == 0) statistics_.first_write_cycle = status_.cycle;
        statistics_.last_write_cycle = status_.cycle;
        return true;
    }

    void store(uint8_t* to, uint64_t strobes) {
        constexpr unsigned bytes = bus_bytes<V>();
        constexpr uint64_t all = bytes == 64 ? ~uint64_t{0} : (uint64_t{1} << bytes % 64) - 1;
        const auto* data = reinterpret_cast<const uint8_t*>(&top_.m_axi_wdata);
        if (strobes == all) {
            std::memcpy(to, data, bytes);
        } else {
            for (unsigned i = 0; i < bytes; ++i) {
                if (strobes >> i & 1) to[i] = data[i];
            }
        }
    }

    V& top_;
    const Config config_;
    Status& status_;
    Statistics statistics_;
    std::vector<Fault> faults_;

    // Bursts are in reads_ and writes_ until their last beat; responses_ holds the completed writes
    // until their responses are accepted.
    Queue<Burst> reads_, writes_, responses_;
    std::vector<uint64_t> bank_free_;  // by bank, first cycle in which a burst may begin in it
    Request read_request_, write_request_;
    int64_t beat_cost_;  // bytes * rate_denominator, the unit of the credit
    int64_t credit_ = 0;
    uint64_t random_ = 1;
    bool read_shown_, response_shown_;  // rvalid, bvalid
    bool read_turn_;                    // whether a read goes first if there is credit for one beat
    bool data_waits_;                   // whether wvalid waited in the last cycle, with this data:
    bool waiting_last_ = false;
    uint64_t waiting_strobes_ = 0;
    uint8_t waiting_data_[bus_bytes<V>()];
};

// The memory behind a design's second port, if it has one.
template <class V, bool has = HasTwoPorts<V>::value>
struct SecondMemory {};
template <class V>
struct SecondMemory<V, true> {
    SecondMemory(V& top, Config config, Status& status) : port(top), memory(port, other(config), status) {}
    SecondPort<V> port;
    Memory<SecondPort<V>> memory;

  private:
    static Config other(Config config) {
        config.seed = ~config.seed;
        return config;
    }
};

}  // namespace
