// Fields of equal width in Verilog's vectors, and delay lines of words.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native_archive.hpp"

namespace fpgapipe {

// Unpack signed fields of up to 32 bits.
inline void unpack(const uint32_t* words, unsigned bits, unsigned count, int32_t* fields) {
    uint64_t word = 0;
    unsigned filled = 0;
    for (unsigned i = 0; i < count; ++i) {
        if (filled < bits) {
            word |= uint64_t(*words++) << filled;
            filled += 32;
        }
        fields[i] = int32_t(uint32_t(word) << (32 - bits)) >> (32 - bits);
        word >>= bits;
        filled -= bits;
    }
}

// Pack the lowest bits of fields.
inline void pack(const int32_t* fields, unsigned bits, unsigned count, uint32_t* words) {
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    uint64_t word = 0;
    unsigned filled = 0;
    for (unsigned i = 0; i < count; ++i) {
        word |= (uint64_t(uint32_t(fields[i])) & mask) << filled;
        filled += bits;
        if (filled >= 32) {
            *words++ = uint32_t(word);
            word >>= 32;
            filled -= 32;
        }
    }
    if (filled) *words = uint32_t(word);
}

// Memory that begins at a multiple of 64 bytes.
template <class T>
class Aligned {
  public:
    explicit Aligned(size_t size) : size_(size), words_(size + 64 / sizeof(T)) {}
    T* data() {
        const auto address = reinterpret_cast<uintptr_t>(words_.data());
        return words_.data() + ((64 - address % 64) % 64) / sizeof(T);
    }

    // The place of the words in `words_` depends on its address, so it is no part of the state.
    void archive(Archive& archive) { archive.raw(data(), size_ * sizeof(T)); }

  private:
    const size_t size_;
    std::vector<T> words_;
};

// Words of `size` elements that leave after a number of ticks, at least one; zeros leave first.
template <class T>
class Delay {
  public:
    Delay(unsigned ticks, size_t size)
        : ticks_(ticks), size_((size + 15) / 16 * 16), words_(ticks * size_) {}

    // The word that entered the longest time ago, in whose place the next one will be put.
    T* oldest() { return words_.data() + place_ * size_; }
    void advance() { place_ = place_ + 1 == ticks_ ? 0 : place_ + 1; }
    void archive(Archive& archive) {
        words_.archive(archive);
        archive(place_);
    }

  private:
    const unsigned ticks_;
    const size_t size_;
    Aligned<T> words_;
    unsigned place_ = 0;
};

}  // namespace fpgapipe
