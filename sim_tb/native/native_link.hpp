// The link ports m_axis_link{n}_* and s_axis_link{n}_*, and the wires behind them.
//
// A PHY has the clock of the core, and gives a beat to s_axis_clock{n}_* in each 16th cycle.
//
// `Wire` does what the class of that name in phy.py does, with the same integers; the documentation
// there is the definition. A wire keeps the beats that it has accepted until a caller takes them to
// the other end.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "native_memory.hpp"

namespace {

constexpr unsigned max_links = 4;
constexpr unsigned max_phy_bytes = 68;  // of an on-chip link; its beats keep 64 of them
constexpr unsigned tick_cycles = 16;  // TICK_CYCLES of link_clock.py

// A beat as it is passed between libraries; it has the layout of native_library.py's RawBeat.
struct LinkBeat {
    uint64_t arrival;  // cycle in which the receiver sees it
    uint64_t keep;
    uint8_t data[(max_phy_bytes + 7) / 8 * 8];  // no padding: states are compared byte by byte
    uint64_t last;
};

// Configuration of a wire; it has the layout of native_library.py's RawWire.
struct WireConfig {
    struct Numbers {
        const uint64_t* items;
        uint64_t size;
        std::deque<uint64_t> queue() const { return {items, items + size}; }
    };
    uint64_t phy_bytes;
    uint64_t rate_numerator, rate_denominator;
    uint64_t delay_cycles;
    uint64_t burst_bits;
    uint64_t seed;
    uint64_t burst, drop, duplicate, pause;  // thresholds of 64-bit numbers
    uint64_t errors[max_phy_bytes + 1];      // thresholds by number of kept bytes
    Numbers bit_errors, drops, duplicates, resets;
    Numbers down, stalls;  // begin, end, begin, end, ...
};

// Counts of events; they have the layout of native_library.py's RawCounts.
struct WireCounts {
    uint64_t beats, frames, flips, dropped, repeated, lost, waits;
};

class Random {
  public:
    Random(uint64_t seed, uint64_t stream) : state_(stream) { state_ = draw() ^ seed; }
    uint64_t draw() {
        uint64_t mixed = state_ += 0x9E3779B97F4A7C15u;
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
        return mixed ^ mixed >> 31;
    }

  private:
    uint64_t state_;
};

class Wire {
  public:
    explicit Wire(const WireConfig& config)
        : config_(config),
          bit_errors_(config.bit_errors.queue()),
          drops_(config.drops.queue()),
          duplicates_(config.duplicates.queue()),
          resets_(config.resets.queue()),
          down_(config.down.queue()),
          stalls_(config.stalls.queue()),
          errors_(config.seed, 0),
          bursts_(config.seed, 1),
          frames_(config.seed, 2),
          pauses_(config.seed, 3) {}

    bool tready(uint64_t cycle) {
        const int64_t rate = config_.rate_numerator;
        credit_ = std::min<int64_t>(credit_ + rate,
                                    rate + config_.phy_bytes * config_.rate_denominator);
        const bool paused = config_.pause && pauses_.draw() < config_.pause;
        const bool ready = credit_ > 0 && !paused && !within(stalls_, cycle);
        counts_.waits += !ready;
        return ready;
    }

    // `beat` has data, keep and last; bytes of data beyond the port's width are 0.
    void accept(uint64_t cycle, LinkBeat& beat) {
        credit_ -= int64_t(__builtin_popcountll(beat.keep) * config_.rate_denominator);
        ++counts_.beats;
        if (!in_frame_) begin_frame();
        in_frame_ = !beat.last;
        damage(beat);
        if (dropping_ || within(down_, cycle)) {
            ++counts_.lost;
        } else {
            if (repeating_) frame_.push_back(beat);
            send(cycle, beat);
        }
        if (beat.last) {
            for (LinkBeat& copy : frame_) send(cycle, copy);
            frame_.clear();
        }
    }

    void archive(Archive& archive) {
        archive(bit_errors_, drops_, duplicates_, resets_, down_, stalls_, errors_, bursts_,
                frames_, pauses_, counts_, credit_, bits_, burst_left_, least_arrival_, in_frame_,
                dropping_, repeating_, frame_, flying_);
    }

    // Accepted beats that will arrive, in order; the caller that takes them clears the list.
    std::vector<LinkBeat>& flying() { return flying_; }
    const WireCounts& counts() const { return counts_; }

  private:
    // Cycles come in order, so ranges that are over are removed.
    static bool within(std::deque<uint64_t>& ranges, uint64_t cycle) {
        while (!ranges.empty() && ranges[1] <= cycle) {
            ranges.pop_front();
            ranges.pop_front();
        }
        return !ranges.empty() && ranges[0] <= cycle;
    }

    static bool is_next(std::deque<uint64_t>& numbers, uint64_t number) {
        if (numbers.empty() || numbers.front() != number) return false;
        numbers.pop_front();
        return true;
    }

    void begin_frame() {
        const uint64_t number = counts_.frames++;
        dropping_ = is_next(drops_, number);
        repeating_ = is_next(duplicates_, number);
        if (config_.drop || config_.duplicate) {
            dropping_ |= frames_.draw() < config_.drop;
            repeating_ |= frames_.draw() < config_.duplicate;
        }
        repeating_ &= !dropping_;
        counts_.dropped += dropping_;
        counts_.repeated += repeating_;
    }

    // Flip bit number `bit` of the bits that a beat keeps.
    void flip(LinkBeat& beat, uint64_t bit) {
        uint64_t keep = beat.keep;
        for (uint64_t byte = bit / 8; byte; --byte) keep &= keep - 1;
        beat.data[__builtin_ctzll(keep)] ^= 1 << bit % 8;
        ++counts_.flips;
    }

    void damage(LinkBeat& beat) {
        const unsigned kept = __builtin_popcountll(beat.keep);
        const uint64_t size = 8 * kept;
        while (!bit_errors_.empty() && bit_errors_.front() < bits_ + size) {
            flip(beat, bit_errors_.front() - bits_);
            bit_errors_.pop_front();
        }
        if (const uint64_t threshold = config_.errors[kept]) {
            while (errors_.draw() < threshold) flip(beat, errors_.draw() % size);
        }
        if (config_.burst && size) burst(beat, size);
        bits_ += size;
    }

    void burst(LinkBeat& beat, uint64_t size) {
        uint64_t first = 0;
        const bool begins = burst_left_ == 0;
        if (begins) {
            if (bursts_.draw() >= config_.burst) return;
            first = bursts_.draw() % size;
            burst_left_ = config_.burst_bits;
        }
        const uint64_t count = std::min(burst_left_, size - first);
        burst_left_ -= count;
        uint64_t word = 0;
        for (uint64_t bit = 0; bit < count; ++bit) {
            if (bit % 64 == 0) word = bursts_.draw() | (begins && bit == 0);
            if (word >> bit % 64 & 1) flip(beat, first + bit);
        }
    }

    void send(uint64_t cycle, LinkBeat& beat) {
        beat.arrival = std::max(cycle + config_.delay_cycles, least_arrival_);
        while (!resets_.empty() && resets_.front() < cycle) resets_.pop_front();
        if (!resets_.empty() && resets_.front() < beat.arrival) {
            ++counts_.lost;
            return;
        }
        least_arrival_ = beat.arrival + 1;
        flying_.push_back(beat);
    }

    const WireConfig config_;  // its lists are not used after construction, but these copies:
    std::deque<uint64_t> bit_errors_, drops_, duplicates_, resets_, down_, stalls_;
    Random errors_, bursts_, frames_, pauses_;
    WireCounts counts_{};
    int64_t credit_ = 0;
    uint64_t bits_ = 0;
    uint64_t burst_left_ = 0;
    uint64_t least_arrival_ = 0;
    bool in_frame_ = false, dropping_ = false, repeating_ = false;
    std::vector<LinkBeat> frame_, flying_;
};

// Tells a core how fast the PHY's clock is, if the design has the port N for it.
template <class V, unsigned N, class = void>
struct ClockPins {
    static void tick(V&, bool) {}
};
#define FPGAPIPE_CLOCK_PINS(N)                                                                    \
    template <class V>                                                                            \
    struct ClockPins<V, N, std::void_t<decltype(std::declval<V&>().s_axis_clock##N##_tvalid)>> {  \
        static void tick(V& t, bool valid) { t.s_axis_clock##N##_tvalid = valid; }                \
    };
FPGAPIPE_CLOCK_PINS(0)
FPGAPIPE_CLOCK_PINS(1)
FPGAPIPE_CLOCK_PINS(2)
FPGAPIPE_CLOCK_PINS(3)
#undef FPGAPIPE_CLOCK_PINS

// Bytes that a beat of link port N keeps, and whether it ends a frame; streams of on-chip links have
// no signals for either.
template <class V, unsigned N, class = void>
struct FramePins {
    static uint64_t keep(V&) { return ~uint64_t{0}; }
    static bool last(V&) { return true; }
    static void give(V&, uint64_t, bool) {}
};
#define FPGAPIPE_FRAME_PINS(N)                                                                  \
    template <class V>                                                                          \
    struct FramePins<V, N, std::void_t<decltype(std::declval<V&>().m_axis_link##N##_tkeep)>> {  \
        static uint64_t keep(V& t) { return t.m_axis_link##N##_tkeep; }                         \
        static bool last(V& t) { return t.m_axis_link##N##_tlast; }                             \
        static void give(V& t, uint64_t keep, bool last) {                                      \
            t.s_axis_link##N##_tkeep = keep;                                                    \
            t.s_axis_link##N##_tlast = last;                                                    \
        }                                                                                       \
    };
FPGAPIPE_FRAME_PINS(0)
FPGAPIPE_FRAME_PINS(1)
FPGAPIPE_FRAME_PINS(2)
FPGAPIPE_FRAME_PINS(3)
#undef FPGAPIPE_FRAME_PINS

// The signals of link port N of a design; without specialization if the design has no such port.
template <class V, unsigned N, class = void>
struct LinkPins {
    static constexpr unsigned bytes = 0;
};
#define FPGAPIPE_LINK_PINS(N)                                                                   \
    template <class V>                                                                          \
    struct LinkPins<V, N, std::void_t<decltype(std::declval<V&>().m_axis_link##N##_tdata)>> {   \
        static constexpr unsigned bytes =                                                       \
            sizeof(std::remove_reference_t<decltype(std::declval<V&>().m_axis_link##N##_tdata)>); \
        static auto& tx_data(V& t) { return t.m_axis_link##N##_tdata; }                         \
        using Frame = FramePins<V, N>;                                                          \
        static auto& tx_valid(V& t) { return t.m_axis_link##N##_tvalid; }                       \
        static auto& tx_ready(V& t) { return t.m_axis_link##N##_tready; }                       \
        static auto& rx_data(V& t) { return t.s_axis_link##N##_tdata; }                         \
        static auto& rx_valid(V& t) { return t.s_axis_link##N##_tvalid; }                       \
        static auto& rx_ready(V& t) { return t.s_axis_link##N##_tready; }                       \
        static void tick(V& t, bool valid) { ClockPins<V, N>::tick(t, valid); }                 \
    };
FPGAPIPE_LINK_PINS(0)
FPGAPIPE_LINK_PINS(1)
FPGAPIPE_LINK_PINS(2)
FPGAPIPE_LINK_PINS(3)
#undef FPGAPIPE_LINK_PINS

template <class V>
constexpr bool has_links = LinkPins<V, 0>::bytes || LinkPins<V, 1>::bytes ||
                           LinkPins<V, 2>::bytes || LinkPins<V, 3>::bytes;

// A wire's configuration with its own copies of the lists; a reset creates the wire anew from it.
struct WireSource {
    explicit WireSource(const WireConfig& other) : config(other) {
        for (WireConfig::Numbers* numbers :
             {&config.bit_errors, &config.drops, &config.duplicates, &config.resets, &config.down,
              &config.stalls}) {
            lists.emplace_back(numbers->items, numbers->items + numbers->size);
            numbers->items = lists.back().data();
        }
    }
    WireSource(const WireSource&) = delete;
    WireConfig config;
    std::deque<std::vector<uint64_t>> lists;
};

// State of a port, independent of its width: the outgoing wire and the incoming beats.
struct LinkPort {
    std::unique_ptr<WireSource> source;
    std::unique_ptr<Wire> wire;  // if there is none, outgoing beats are lost at once
    std::deque<LinkBeat> arriving;
    LinkBeat waiting{};
    bool waits = false;
    uint64_t last_arrival = 0;

    void archive(Archive& archive) {
        if (wire) wire->archive(archive);
        archive(arriving, waiting, waits, last_arrival);
    }

    void clear() {
        if (source) wire = std::make_unique<Wire>(source->config);
        arriving.clear();
        waits = false;
        last_arrival = 0;
    }
};

template <class V>
class Links {
  public:
    Links(V& top, Status& status) : top_(top), status_(status) { clear(); }

    void clear() {
        for (LinkPort& port : ports_) port.clear();
        each([this](auto pins, LinkPort&) {
            pins.tx_ready(top_) = 0;
            pins.rx_valid(top_) = 0;
        });
    }

    void archive(Archive& archive) {
        for (LinkPort& port : ports_) port.archive(archive);
    }

    static unsigned bytes(unsigned port) {
        constexpr unsigned widths[] = {LinkPins<V, 0>::bytes, LinkPins<V, 1>::bytes,
                                       LinkPins<V, 2>::bytes, LinkPins<V, 3>::bytes};
        return port < max_links ? widths[port] : 0;
    }

    void attach(unsigned number, const WireConfig& config) {
        ports_[number].source = std::make_unique<WireSource>(config);
        ports_[number].clear();
    }

    std::vector<LinkBeat>* flying(unsigned number) {
        return ports_[number].wire ? &ports_[number].wire->flying() : nullptr;
    }

    WireCounts counts(unsigned number) const {
        return ports_[number].wire ? ports_[number].wire->counts() : WireCounts{};
    }

    // Schedule beats, in order of arrival; all arrive after those that were given before.
    void give(unsigned number, const LinkBeat* beats, uint64_t count) {
        LinkPort& port = ports_[number];
        for (uint64_t i = 0; i < count; ++i) {
            if (beats[i].arrival < std::max(port.last_arrival, status_.cycle))
                status_.fail("link " + std::to_string(number) + ": a beat for cycle " +
                             std::to_string(beats[i].arrival) + " came too late");
            port.last_arrival = beats[i].arrival + 1;
            port.arriving.push_back(beats[i]);
        }
    }

    // Drive the wires' side of the ports for this cycle, which depends on the wires' state only.
    void offer() {
        each([this](auto pins, LinkPort& port) {
            V& t = top_;
            pins.tick(t, status_.cycle % tick_cycles == 0);
            pins.tx_ready(t) = !port.wire || port.wire->tready(status_.cycle);
            const bool comes =
                !port.arriving.empty() && port.arriving.front().arrival == status_.cycle;
            pins.rx_valid(t) = comes;
            if (!comes) return;
            const LinkBeat& beat = port.arriving.front();
            std::memcpy(&pins.rx_data(t), beat.data, pins.bytes);
            decltype(pins)::Frame::give(t, beat.keep, beat.last);
        });
    }

    // Process the transfers that the rising edge will complete.
    void take() {
        each([this](auto pins, LinkPort& port) {
            V& t = top_;
            const auto fail = [&](const char* group, const char* what) {
                status_.fail(std::string(group) + "_axis_link" +
                             std::to_string(&port - ports_.data()) + what);
            };
            if (pins.rx_valid(t)) {
                if (!pins.rx_ready(t)) fail("s", "_tready is low: a wire does not wait");
                port.arriving.pop_front();
            }
            if (!pins.tx_valid(t)) {
                if (port.waits) fail("m", "_tvalid fell before tready rose");
                port.waits = false;
                return;
            }
            LinkBeat beat{};
            beat.keep = decltype(pins)::Frame::keep(t);
            beat.last = decltype(pins)::Frame::last(t);
            std::memcpy(beat.data, &pins.tx_data(t), pins.bytes);
            if (port.waits && (beat.keep != port.waiting.keep || beat.last != port.waiting.last ||
                               std::memcmp(beat.data, port.waiting.data, pins.bytes) != 0))
                fail("m", "_tdata, tkeep or tlast changed while tvalid waited for tready");
            port.waits = !pins.tx_ready(t);
            if (port.waits) {
                port.waiting = beat;
            } else if (port.wire) {
                port.wire->accept(status_.cycle, beat);
            }
        });
    }

  private:
    template <class F, unsigned N = 0>
    void each(F&& body) {
        if constexpr (N < max_links) {
            if constexpr (LinkPins<V, N>::bytes) body(LinkPins<V, N>{}, ports_[N]);
            each<F, N + 1>(std::forward<F>(body));
        }
    }

    V& top_;
    Status& status_;
    std::array<LinkPort, max_links> ports_;
};

}  // namespace
