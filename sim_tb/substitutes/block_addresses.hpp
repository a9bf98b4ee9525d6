// The address generator of an operand reader in C++: gemm/address.py's AddressGenerator.
//
// All stages move together, and a word's request follows from the position of the loops alone. So
// the request is made in the first stage, and waits in a ring for as many cycles as the stages
// take. Stages that have no word keep what they had: nothing shows what the gateware has there.

#pragma once

#include <cstdint>
#include <initializer_list>

#include "block_simd.hpp"

namespace fpgapipe {

// A field of a packed structure, at most 32 bits.
inline uint32_t field(const uint32_t* words, unsigned begin, unsigned bits) {
    const unsigned place = begin / 32, shift = begin % 32;
    uint64_t both = words[place];
    if (shift + bits > 32) both |= uint64_t(words[place + 1]) << 32;
    return uint32_t((both >> shift) & ((uint64_t(1) << bits) - 1));
}

struct Request {
    uint32_t address, mask, index;
    uint8_t sub, emit;
    bool empty, out_of_range, transposed, fp32, last;
};

// Address and coordinates, modulo their widths.
struct Coordinates {
    uint32_t address, y, u;

    void add(const Coordinates& other) {
        address += other.address;
        y += other.y;
        u += other.u;
    }
};

// A nest of loops: the iterations left, of which 0 is the last, and what the steps add up to.
struct LoopNest {
    uint32_t counts[3], left[3];
    Coordinates jumps[3], value;

    bool is_last() const { return !(left[0] | left[1] | left[2]); }
    void begin(const Coordinates& start) {
        for (unsigned k = 0; k < 3; ++k) left[k] = counts[k];
        value = start;
    }
    // Go to the next position, if there is one.
    bool step() {
        for (unsigned k = 0; k < 3; ++k) {
            if (!left[k]) continue;
            --left[k];
            for (unsigned inner = 0; inner < k; ++inner) left[inner] = counts[inner];
            value.add(jumps[k]);
            return true;
        }
        return false;
    }
    void step_or_begin(const Coordinates& start) {
        if (!step()) begin(start);
    }
};

class Addresses {
  public:
    bool ready() const { return !has_skid_ && (!is_active_ || finished_); }
    bool valid() const { return has_skid_ || stages_ & 1; }
    const Request& request() const { return has_skid_ ? skid_ : request_; }

    // Move by one cycle. `descriptor` is that of an instruction that moves at the input, or null.
    void tick(const uint32_t* descriptor, bool ready, unsigned address_bits, bool forgets) {
        if (has_skid_) {
            has_skid_ = !ready;
            return;
        }
        if (stages_ & 1 && !ready) {
            skid_ = request_;
            has_skid_ = true;
        }
        stages_ >>= 1;
        if (stages_ & 1) request_ = waiting_[place_];
        if (is_active_) {
            stages_ |= 1 << later;
            make(waiting_[place_], address_bits);
        }
        place_ = place_ + 1 == later ? 0 : place_ + 1;
        if (descriptor) {
            take(descriptor);
        } else if (is_active_) {
            is_active_ = !finished_;
            if (is_active_) step(forgets);
        }
        if (is_active_) look();
    }

    void reset() {
        has_skid_ = false;
        is_active_ = false;
        stages_ = 0;
    }

  private:
    static constexpr unsigned later = 3;  // ticks between the first stage and the last
    static constexpr uint32_t block = 32;
    static constexpr Coordinates nothing = {};

    void take(const uint32_t* words) {
        is_active_ = true;
        index_ = words[0];
        start_ = {field(words, 32, 32), field(words, 64, 16), field(words, 80, 24)};
        y_limit_ = field(words, 104, 16);
        u_limit_ = field(words, 120, 24);
        lanes_last_ = field(words, 144, 6);
        lanes_by_outer_ = field(words, 150, 1);
        emit_ = field(words, 151, 6);
        emit_last_ = field(words, 157, 6);
        subs_ = field(words, 163, 6);
        subs_last_ = field(words, 169, 6);
        blocks_ = field(words, 175, 16);
        first_[0] = field(words, 191, 16);
        first_[1] = field(words, 207, 16);
        walks_ = field(words, 223, 1);
        transposed_ = field(words, 224, 1);
        fp32_ = field(words, 225, 1);
        unsigned place = 226;
        for (LoopNest* nest : {&outer_, &tap_, &pos_}) {
            for (unsigned k = 0; k < 3; ++k, place += 88) {
                nest->counts[k] = field(words, place, 16);
                nest->jumps[k] = {field(words, place + 16, 32), field(words, place + 48, 16),
                                  field(words, place + 64, 24)};
            }
        }
        outer_.begin(start_);
        tap_.begin(nothing);
        begin_pos();
        element_ = sub_ = 0;
        blocks_left_ = blocks_;
        save();
    }

    void begin_pos() {
        pos_.left[0] = first_[0];
        pos_.left[1] = first_[1];
        pos_.left[2] = pos_.counts[2];
        pos_.value = nothing;
        exhausted_ = false;
    }

    void save() {
        for (unsigned k = 0; k < 3; ++k) saved_left_[k] = pos_.left[k];
        saved_ = pos_.value;
        saved_exhausted_ = exhausted_;
    }

    // Find the ends of loops at this position.
    void look() {
        const bool in_last = walks_ ? blocks_left_ == 0 : tap_.left[0] == 0;
        inner_end_ = walks_ ? element_ == block - 1 : pos_.is_last();
        sub_last_ = int(sub_) == int(in_last ? subs_last_ : subs_) - 1;
        const bool tap_last = tap_.is_last();
        sub_step_ = inner_end_ && (tap_last || !walks_);
        block_end_ = inner_end_ && sub_last_ && tap_last;
        outer_step_ = block_end_ && (blocks_left_ == 0 || !walks_);
        finished_ = outer_step_ && outer_.is_last();
    }

    void step(bool forgets) {
        element_ = inner_end_ ? 0 : (element_ + 1) % block;
        if (sub_step_) sub_ = sub_last_ ? 0 : (sub_ + 1) % block;
        if (block_end_) blocks_left_ = blocks_left_ == 0 || !walks_ ? blocks_ : blocks_left_ - 1;
        if (outer_step_) outer_.step_or_begin(start_);
        if (inner_end_ && (sub_last_ || walks_)) tap_.step_or_begin(nothing);
        if (walks_ && outer_step_) {
            begin_pos();
        } else if (walks_ && inner_end_ && !block_end_) {
            for (unsigned k = 0; k < 3; ++k) pos_.left[k] = saved_left_[k];
            pos_.value = saved_;
            exhausted_ = saved_exhausted_;
        } else if (!pos_.step()) {
            if (walks_) {
                exhausted_ = true;
            } else {
                begin_pos();
            }
        }
        if (block_end_ && !forgets) save();
    }

    // The request for the word at this position.
    void make(Request& request, unsigned address_bits) const {
        Coordinates at = outer_.value;
        at.add(tap_.value);
        at.add(pos_.value);
        const int32_t y = int16_t(at.y), u = int32_t(at.u << 8) >> 8;
        const bool there = !exhausted_ && y >= 0 && y < int32_t(y_limit_);
        const int32_t rest = int32_t(u_limit_) - u;  // elements up to the limit
        const uint32_t below = u >= 0 ? block : u >= -int32_t(block) ? uint32_t(u) % block : 0;
        const uint32_t above = rest < 0 ? block : rest >= int32_t(block) ? 0 : block - rest;
        const bool is_short = (lanes_by_outer_ ? outer_.left[0] : tap_.left[0]) == 0;
        const uint32_t shorter = is_short ? (block - lanes_last_) % 64 : 0;
        const uint32_t cut = above > shorter ? above : shorter;
        request.empty = !there || above >= below || shorter >= below;
        request.mask = there ? ones(cut) & ~ones(below) : 0;
        request.address = at.address & ((uint32_t(1) << address_bits) - 1);
        request.out_of_range = at.address >> address_bits && !request.empty;
        request.index = index_;
        request.sub = uint8_t(sub_);
        request.emit = uint8_t(tap_.left[0] ? emit_ : emit_last_);
        request.transposed = transposed_;
        request.fp32 = fp32_;
        request.last = finished_;
    }

    // Ones that are shifted to the right.
    static uint32_t ones(uint32_t amount) { return amount < block ? UINT32_MAX >> amount : 0; }

    LoopNest outer_, tap_, pos_;
    Coordinates start_, saved_;
    uint32_t first_[2], saved_left_[3];
    uint32_t index_, y_limit_, u_limit_, lanes_last_, emit_, emit_last_, subs_, subs_last_, blocks_;
    uint32_t element_, sub_, blocks_left_;
    bool walks_, transposed_, fp32_, lanes_by_outer_;
    bool exhausted_, saved_exhausted_;
    bool inner_end_, sub_last_, sub_step_, block_end_, outer_step_, finished_;
    bool is_active_, has_skid_;
    uint32_t stages_;  // one bit per stage after the first; the lowest is that of `request_`
    uint32_t place_;
    Request waiting_[later], request_, skid_;
};

}  // namespace fpgapipe
