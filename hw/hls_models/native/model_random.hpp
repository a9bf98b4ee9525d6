// Random tests: numerics/threefry.py, eight counters at a time.

#pragma once

#include "model_lanes.hpp"

namespace fpgapipe_model {
namespace {

typedef uint64_t Counters __attribute__((vector_size(64)));

// Outcomes of a random test for one vector after the other.
class Draw {
  public:
    Draw(const uint64_t (&key)[2], uint64_t first) : next_(first) {
        key_[0] = key[0];
        key_[1] = key[1];
        key_[2] = key_[3] = 0;
        key_[4] = key[0] ^ key[1] ^ 0x1BD11BDAA9FC1A22;
    }
    // Store ones in the lanes whose 16 bits are below the threshold.
    void next(uint32_t threshold, float* to) {
        if (used_ == 8) fill();
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const uint32_t bits = uint32_t(words_[lane / 4][used_] >> 16 * (lane % 4)) & 0xFFFF;
            const uint32_t held = bits < threshold ? ~0u : 0;
            std::memcpy(to + lane, &held, sizeof held);
        }
        ++used_;
    }

  private:
    void fill() {
        static constexpr int rotations[8][2] = {{14, 16}, {52, 57}, {23, 40}, {5, 37},
                                                {25, 33}, {46, 12}, {58, 22}, {32, 32}};
        Counters x[4] = {};
        for (int number = 0; number < 8; ++number) x[0][number] = next_++;
        inject(x, 0);
        for (int round = 0; round < 12; ++round) {
            const int first = round % 2 ? 3 : 1, second = 4 - first;
            mix(x[0], x[first], rotations[round % 8][0]);
            mix(x[2], x[second], rotations[round % 8][1] + (faulty(9) && round == 11));
            if (round % 4 == 3) inject(x, round / 4 + 1);
        }
        for (int word = 0; word < 4; ++word) std::memcpy(words_[word], &x[word], sizeof x[word]);
        used_ = 0;
    }
    void inject(Counters* x, int number) const {
        for (int word = 0; word < 4; ++word) x[word] += key_[(number + word) % 5];
        x[3] += uint64_t(number);
    }
    static void mix(Counters& low, Counters& high, int bits) {
        low += high;
        high = (high << bits | high >> (64 - bits)) ^ low;
    }

    uint64_t key_[5], next_, words_[4][8];
    int used_ = 8;
};

} // namespace
} // namespace fpgapipe_model
