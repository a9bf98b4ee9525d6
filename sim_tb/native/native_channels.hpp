// Sources and sinks of words at the channels of a link's end, and the control of the link.
//
// They are used for designs with the ports of link_top.py. A word of a source, and whether it ends
// a packet, is a function of the source's seed, the session, the channel and the word's index in
// the session. The sink at the other end computes the words again; the first one that differs is an
// error.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "native_memory.hpp"

namespace {

constexpr unsigned num_channels = 3;
constexpr unsigned word_bytes = 64;

// Configuration; it has the layout of link_world.py's structure of the same name.
struct ChannelsConfig {
    uint64_t enable, link_seed;
    uint64_t seed, peer_seed;            // seeds of the words
    uint64_t packet_words[num_channels];  // average number of words per packet
    uint64_t words[num_channels];         // a source stops at the first packet's end after these
    uint64_t source_pause, sink_pause;   // average chance of a pause in a cycle, in 1/1024
};

// Status; it has the layout of link_world.py's structure of the same name.
struct ChannelsStatus {
    uint64_t state, session, peer, peer_delivered_known;
    uint64_t delivered[num_channels], peer_delivered[num_channels];  // counters of the design
    uint64_t accepted[num_channels], taken[num_channels];            // words moved in this session
    uint64_t resting;  // mask of the channels whose source has stopped
    uint64_t accepted_cycle, taken_cycle;  // cycles in which the last words moved
    uint64_t ended_session;                // the preceding session, and words moved in it
    uint64_t ended_accepted[num_channels], ended_taken[num_channels];
    uint64_t total_accepted, total_taken;
    uint64_t events[8];  // counts since the reset, in the order of link.py's EVENTS
};

template <class V, class = void>
struct HasChannels : std::false_type {};
template <class V>
struct HasChannels<V, std::void_t<decltype(std::declval<V&>().s_axis_channel0_tdata)>>
    : std::true_type {};

template <unsigned N>
struct ChannelPins;
#define FPGAPIPE_CHANNEL_PINS(N)                                                            \
    template <>                                                                             \
    struct ChannelPins<N> {                                                                 \
        template <class V> static auto& in_data(V& t) { return t.s_axis_channel##N##_tdata; }    \
        template <class V> static auto& in_last(V& t) { return t.s_axis_channel##N##_tlast; }    \
        template <class V> static auto& in_valid(V& t) { return t.s_axis_channel##N##_tvalid; }  \
        template <class V> static auto& in_ready(V& t) { return t.s_axis_channel##N##_tready; }  \
        template <class V> static auto& out_data(V& t) { return t.m_axis_channel##N##_tdata; }   \
        template <class V> static auto& out_last(V& t) { return t.m_axis_channel##N##_tlast; }   \
        template <class V> static auto& out_valid(V& t) { return t.m_axis_channel##N##_tvalid; } \
        template <class V> static auto& out_ready(V& t) { return t.m_axis_channel##N##_tready; } \
        template <class V> static uint64_t delivered(V& t) { return t.link_delivered##N; }       \
        template <class V> static uint64_t peer_delivered(V& t) {                           \
            return t.link_peer_delivered##N;                                                \
        }                                                                                   \
    };
FPGAPIPE_CHANNEL_PINS(0)
FPGAPIPE_CHANNEL_PINS(1)
FPGAPIPE_CHANNEL_PINS(2)
#undef FPGAPIPE_CHANNEL_PINS

template <class V>
class Channels {
  public:
    Channels(V& top, Status& status) : t(top), status_(status) { clear(); }

    void clear() {
        if constexpr (HasChannels<V>::value) {
            now_ = {};
            sources_ = {};
            random_ = config_.seed;
            clears_ = false;
            each([this](auto pins, unsigned) {
                pins.in_valid(t) = 0;
                pins.out_ready(t) = 0;
            });
        }
    }

    void archive(Archive& archive) {
        archive(config_, now_, sources_, random_, is_up_, clears_);
    }

    void configure(const ChannelsConfig& config) { config_ = config; }
    void clear_link() { clears_ = true; }

    ChannelsStatus status() {
        if constexpr (HasChannels<V>::value) {
            now_.state = t.link_state;
            now_.peer = t.link_peer;
            now_.peer_delivered_known = t.link_peer_delivered_known;
            now_.resting = 0;
            each([this](auto pins, unsigned channel) {
                now_.delivered[channel] = pins.delivered(t);
                now_.peer_delivered[channel] = pins.peer_delivered(t);
                now_.resting |= uint64_t{!wants(channel)} << channel;
            });
        }
        return now_;
    }

    // Drive the design's inputs for this cycle, which depend on the state here only.
    void offer() {
        if constexpr (HasChannels<V>::value) {
            t.link_enable = config_.enable;
            t.link_seed = config_.link_seed;
            t.link_clear = clears_;
            clears_ = false;
            random_ += 0x9E3779B97F4A7C15u;
            const uint64_t draws = mixed(random_);
            each([&](auto pins, unsigned channel) {
                Source& source = sources_[channel];
                if (is_up_ && !source.valid && wants(channel) &&
                    !pauses(draws >> 10 * channel, config_.source_pause, channel)) {
                    source.valid = true;
                    source.last = make(source.word, config_.seed, now_.session, channel,
                                       now_.accepted[channel]);
                    std::memcpy(&pins.in_data(t), source.word, word_bytes);
                    pins.in_last(t) = source.last;
                }
                pins.in_valid(t) = source.valid;
                pins.out_ready(t) =
                    !pauses(draws >> (30 + 10 * channel), config_.sink_pause, channel + 1);
            });
        }
    }

    // Process the transfers that the rising edge will complete.
    void take() {
        if constexpr (HasChannels<V>::value) {
            if (t.link_session != now_.session) begin_session();
            is_up_ = t.link_state == 2;
            each([this](auto pins, unsigned channel) {
                Source& source = sources_[channel];
                if (source.valid && pins.in_ready(t)) {
                    source.valid = false;
                    source.in_packet = !source.last;
                    ++now_.accepted[channel];
                    ++now_.total_accepted;
                    now_.accepted_cycle = status_.cycle;
                }
                if (pins.out_valid(t) && pins.out_ready(t))
                    check(channel, &pins.out_data(t), pins.out_last(t));
            });
            uint64_t events = t.link_events;
            for (unsigned i = 0; events; ++i) {
                const unsigned bits = i == 1 ? 2 : 1;  // rx_word counts up to three per cycle
                now_.events[i] += events & ((1u << bits) - 1);
                events >>= bits;
            }
        }
    }

  private:
    struct Source {
        bool valid, last, in_packet;
        uint64_t word[word_bytes / 8];
    };

    static uint64_t mixed(uint64_t x) {
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
        x = (x ^ x >> 27) * 0x94D049BB133111EBu;
        return x ^ x >> 31;
    }

    // Compute a word; returns whether it ends a packet.
    bool make(uint64_t* word, uint64_t seed, uint64_t session, unsigned channel,
              uint64_t index) const {
        const uint64_t key = mixed(mixed(seed) ^ (session << 8 | channel));
        uint64_t x = mixed(key + index * 0x9E3779B97F4A7C15u);
        for (unsigned i = 0; i < word_bytes / 8; ++i) {
            word[i] = x;
            x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u + index;
        }
        return (x >> 32) % config_.packet_words[channel] == 0;
    }

    bool wants(unsigned channel) const {
        return now_.accepted[channel] < config_.words[channel] || sources_[channel].in_packet;
    }

    // Long periods without pauses and long ones with many find other faults than a uniform mixture.
    bool pauses(uint64_t draw, uint64_t mean, unsigned phase) const {
        constexpr uint64_t weights[] = {2, 0, 1, 1};
        const uint64_t chance = mean * weights[(status_.cycle / 256 + phase) % 4];
        return (draw & 1023) < std::min<uint64_t>(chance, 1000);
    }

    void begin_session() {
        if (now_.session) {
            now_.ended_session = now_.session;
            std::memcpy(now_.ended_accepted, now_.accepted, sizeof now_.accepted);
            std::memcpy(now_.ended_taken, now_.taken, sizeof now_.taken);
        }
        now_.session = t.link_session;
        std::memset(now_.accepted, 0, sizeof now_.accepted);
        std::memset(now_.taken, 0, sizeof now_.taken);
        for (Source& source : sources_) source.valid = source.in_packet = false;
    }

    void check(unsigned channel, const void* data, bool last) {
        uint64_t word[word_bytes / 8];
        const uint64_t index = now_.taken[channel]++;
        const bool ends = make(word, config_.peer_seed, t.link_peer, channel, index);
        ++now_.total_taken;
        now_.taken_cycle = status_.cycle;
        if (std::memcmp(word, data, word_bytes) == 0 && last == ends) return;
        unsigned byte = 0;
        while (byte < word_bytes && reinterpret_cast<const uint8_t*>(word)[byte] ==
                                        static_cast<const uint8_t*>(data)[byte])
            ++byte;
        status_.fail("channel " + std::to_string(channel) + ", session " +
                     std::to_string(t.link_peer) + " of the peer: word " + std::to_string(index) +
                     (byte < word_bytes ? " differs in byte " + std::to_string(byte)
                                        : std::string(" has the wrong last")));
    }

    template <class F>
    void each(F&& body) {
        body(ChannelPins<0>{}, 0);
        body(ChannelPins<1>{}, 1);
        body(ChannelPins<2>{}, 2);
    }

    V& t;
    Status& status_;
    ChannelsConfig config_{0, 0, 0, 0, {1, 1, 1}, {}, 0, 0};
    ChannelsStatus now_{};
    std::array<Source, num_channels> sources_{};
    uint64_t random_ = 0;
    bool is_up_ = false, clears_ = false;
};

}  // namespace
