// The systolic array in C++: the cells, skews and deskew of gemm/systolic.py's SystolicCells.
//
// The control of the array stays in Verilog. It calls `tick` in each cycle with `advance` high, and
// `reset` after a tick or instead of one if `rst` is high. The registers have the values that those
// of the Verilog have, but the model does not move them. It uses that everything in the array
// travels in waves:
//
// A vector that enters in tick t meets the cell of row r and column c in tick t + r + c, and its
// sums leave after tick t + latency - 1. A swap that enters in tick s is there in tick s + r + c, so
// all its cells change their weights for the vectors after tick s and for no others. A column of
// weights that enters in tick l is in row r after tick l + r. No column c enters between s and
// s + c - 1, because a tile begins with column 0, and one column enters per tick. So the weights
// that a swap activates are those that entered before it, and the sums of a vector are known when
// it enters. They wait in a ring.
//
// A reset drops the marks that travel with loads and swaps: the cells that they have not reached
// keep what they had. `reset` computes what this leaves in the cells, and repeats the sums of the
// vectors under way. No vector under way is valid then, but their sums stay visible.
//
// Where cells are packed (gemm/packed.py), rows of all cascades move at the same time, a pair of
// columns takes one tick, and loads and swaps are later; the rest is the same. Sums that lack the
// bias of a cascade leave in the first ticks, as if it had been subtracted.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "block_bits.hpp"
#include "block_simd.hpp"

namespace {

using fpgapipe::Aligned;
using fpgapipe::Simd;

constexpr unsigned block_cols = 16;

// Sums of one vector. Weights are pairs of rows: [pair][column][row of the pair], 16 bits each.
using Kernel = void (*)(const int16_t* vector, const int16_t* weights, unsigned pairs,
                        unsigned cols, int32_t* sums);

void sums_plain(const int16_t* vector, const int16_t* weights, unsigned pairs, unsigned cols,
                int32_t* sums) {
    std::memset(sums, 0, cols * sizeof *sums);
    for (unsigned p = 0; p < pairs; ++p, weights += 2 * cols) {
        const int32_t low = vector[2 * p], high = vector[2 * p + 1];
        for (unsigned c = 0; c < cols; ++c)
            sums[c] += low * weights[2 * c] + high * weights[2 * c + 1];
    }
}

#if defined(__x86_64__)
inline int32_t pair_at(const int16_t* vector, unsigned p) {
    int32_t pair;
    std::memcpy(&pair, vector + 2 * p, sizeof pair);
    return pair;
}

FPGAPIPE_AVX2 void sums_avx2(const int16_t* vector, const int16_t* weights, unsigned pairs,
                             unsigned cols, int32_t* sums) {
    for (unsigned c = 0; c < cols; c += 16) {
        const int16_t* part = weights + 2 * c;
        __m256i low = _mm256_setzero_si256(), high = low;
        for (unsigned p = 0; p < pairs; ++p, part += 2 * cols) {
            const auto* here = reinterpret_cast<const __m256i*>(part);
            const __m256i both = _mm256_set1_epi32(pair_at(vector, p));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(both, _mm256_load_si256(here)));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(both, _mm256_load_si256(here + 1)));
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums + c), low);
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums + c + 8), high);
    }
}

FPGAPIPE_AVX512 void sums_avx512(const int16_t* vector, const int16_t* weights, unsigned pairs,
                                 unsigned cols, int32_t* sums) {
    unsigned c = 0;
    for (; c + 32 <= cols; c += 32) {
        const int16_t* part = weights + 2 * c;
        __m512i low = _mm512_setzero_si512(), high = low;
        for (unsigned p = 0; p < pairs; ++p, part += 2 * cols) {
            const __m512i both = _mm512_set1_epi32(pair_at(vector, p));
            low = _mm512_add_epi32(low, _mm512_madd_epi16(both, _mm512_load_si512(part)));
            high = _mm512_add_epi32(high, _mm512_madd_epi16(both, _mm512_load_si512(part + 32)));
        }
        _mm512_store_si512(sums + c, low);
        _mm512_store_si512(sums + c + 16, high);
    }
    for (; c < cols; c += 16) {
        const int16_t* part = weights + 2 * c;
        __m512i all = _mm512_setzero_si512();
        for (unsigned p = 0; p < pairs; ++p, part += 2 * cols) {
            const __m512i both = _mm512_set1_epi32(pair_at(vector, p));
            all = _mm512_add_epi32(all, _mm512_madd_epi16(both, _mm512_load_si512(part)));
        }
        _mm512_store_si512(sums + c, all);
    }
}
#endif

Kernel kernel() {
    switch (fpgapipe::best_simd()) {
#if defined(__x86_64__)
        case Simd::avx512: return sums_avx512;
        case Simd::avx2: return sums_avx2;
#endif
        default: return sums_plain;
    }
}

class Array final : public fpgapipe::Substitute {
  public:
    // Plain cells are said to have no cascades.
    Array(unsigned rows, unsigned cols, unsigned acc_bits, unsigned cascades, unsigned latency)
        : rows_(rows),
          cols_(cols),
          acc_bits_(acc_bits),
          cascades_(cascades),
          latency_(latency),
          pairs_((rows + 1) / 2),
          wide_((cols + block_cols - 1) / block_cols * block_cols),
          kernel_(kernel()),
          vectors_(size_t(latency_) * 2 * pairs_),
          sums_(size_t(latency_) * wide_),
          spare_(matrix_size()),
          active_(matrix_size()),
          loads_(cols, std::deque<Load>{{0, std::vector<int8_t>(rows)}}) {
        if (!cascades) return;
        // The vectors of ticks before the first have passed the first DSP of some pairs, without
        // its bias. The delay lines below begin with zeros.
        const unsigned below = rows_ / cascades_ + cascades_ + 1;
        for (unsigned age = 0; age < latency_; ++age) {
            int32_t* sums = sums_.data() + size_t(age ? latency_ - age : 0) * wide_;
            for (unsigned c = 0; c < cols_; c += 2)
                if (age > c / 2 + 1 && age < c / 2 + below) sums[c] = -int32_t(cascades << 18);
        }
    }

    const bool is_faulty = fpgapipe::faulty("array");

    // Move everything by one tick. `column` is the column that `weights` are for, or negative.
    void tick(const int8_t* vector, const int8_t* weights, int column, bool swap) {
        if (cascades_ && (std::memchr(vector, 0x80, rows_) ||
                          (column >= 0 && std::memchr(weights, 0x80, rows_))))
            throw std::runtime_error("-128 enters a packed cell");
        ++now_;
        place_ = place_ + 1 == latency_ ? 0 : place_ + 1;
        int16_t* here = vectors_.data() + size_t(place_) * 2 * pairs_;
        for (unsigned r = 0; r < rows_; ++r) here[r] = vector[r];
        // An idle engine shows the same vector again, whose sums are those of the one before.
        const unsigned last = place_ ? place_ - 1 : latency_ - 1;
        const size_t vector_size = size_t(2) * pairs_ * sizeof *here;
        if (is_settled_ && !std::memcmp(here, vectors_.data() + size_t(last) * 2 * pairs_,
                                        vector_size)) {
            std::memcpy(sums_.data() + size_t(place_) * wide_,
                        sums_.data() + size_t(last) * wide_, wide_ * sizeof(int32_t));
        } else {
            compute(place_, active_.data());
        }
        is_settled_ = !swap || forgets_;
        if (swap) {
            const int16_t* before = active_.data();
            swaps_.push_back({now_, std::vector<int16_t>(before, before + matrix_size())});
            while (now_ - swaps_.front().tick >= latency_) swaps_.pop_front();
            std::memcpy(active_.data(), spare_.data(), matrix_size() * sizeof(int16_t));
        }
        if (column >= 0) {
            auto& history = loads_[column];
            history.push_back({now_, std::vector<int8_t>(weights, weights + rows_)});
            while (history.size() > 1 && now_ - history[1].tick > load_ticks(rows_ - 1))
                history.pop_front();
            for (unsigned r = 0; r < rows_; ++r) *at(spare_, r, column) = weights[r];
        }
    }

    // Drop the marks of loads and swaps that are under way.
    void reset() {
        is_settled_ = false;
        for (unsigned c = 0; c < cols_; ++c) {
            auto& history = loads_[c];
            if (now_ - history.back().tick < load_ticks(rows_ - 1)) {
                std::vector<int8_t> left(rows_);
                for (unsigned r = 0; r < rows_; ++r) {
                    size_t last = history.size() - 1;
                    while (last > 0 && history[last].tick + load_ticks(r) > now_) --last;
                    left[r] = history[last].weights[r];
                    *at(spare_, r, c) = left[r];
                }
                history.assign(1, {0, std::move(left)});
            }
        }
        if (swaps_.empty()) return;

        // The weights of all vectors under way, from those before the oldest swap on.
        Aligned<int16_t> weights(matrix_size());
        auto& oldest = swaps_.front().before;
        std::copy(oldest.begin(), oldest.end(), weights.data());
        const uint64_t first = now_ + 1 > latency_ ? now_ + 2 - latency_ : 1;
        for (size_t i = 0; i < swaps_.size(); ++i) {
            const bool is_last = i + 1 == swaps_.size();
            int16_t* after = is_last ? active_.data() : swaps_[i + 1].before.data();
            for (unsigned r = 0; r < rows_; ++r) {
                for (unsigned c = 0; c < cols_; ++c) {
                    const size_t index = index_of(r, c);
                    if (swap_ticks(r, c) <= now_ - swaps_[i].tick) weights.data()[index] = after[index];
                }
            }
            const uint64_t end = is_last ? now_ : swaps_[i + 1].tick;
            for (uint64_t t = std::max(first, swaps_[i].tick + 1); t <= end; ++t)
                compute((place_ + latency_ - unsigned(now_ - t)) % latency_, weights.data());
        }
        std::memcpy(active_.data(), weights.data(), matrix_size() * sizeof(int16_t));
        swaps_.clear();
    }

    // Pack the sums that leave the array now.
    void sums(uint32_t* words) {
        const unsigned oldest = place_ + 1 == latency_ ? 0 : place_ + 1;
        fpgapipe::pack(sums_.data() + size_t(oldest) * wide_, acc_bits_, cols_, words);
    }

    void archive(fpgapipe::Archive& archive) override {
        for (auto* words : {&vectors_, &spare_, &active_}) words->archive(archive);
        sums_.archive(archive);
        for (auto& history : loads_) archive(history);
        archive(swaps_, now_, place_, is_settled_);
    }

  private:
    struct Load {
        uint64_t tick;
        std::vector<int8_t> weights;
        void archive(fpgapipe::Archive& archive) { archive(tick, weights); }
    };
    struct Swap {
        uint64_t tick;
        std::vector<int16_t> before;  // the weights that it replaced
        void archive(fpgapipe::Archive& archive) { archive(tick, before); }
    };

    // Ticks from entering until a column of weights is in a row, and a swap in a cell.
    unsigned load_ticks(unsigned row) const {
        return cascades_ ? row % (rows_ / cascades_) + 2 : row;
    }
    unsigned swap_ticks(unsigned row, unsigned col) const {
        return cascades_ ? row % (rows_ / cascades_) + col / 2 + 1 : row + col;
    }
    size_t matrix_size() const { return size_t(pairs_) * wide_ * 2; }
    size_t index_of(unsigned r, unsigned c) const {
        return (size_t(r / 2) * wide_ + c) * 2 + r % 2;
    }
    int16_t* at(Aligned<int16_t>& matrix, unsigned r, unsigned c) {
        return matrix.data() + index_of(r, c);
    }
    void compute(unsigned place, const int16_t* weights) {
        kernel_(vectors_.data() + size_t(place) * 2 * pairs_, weights, pairs_, wide_,
                sums_.data() + size_t(place) * wide_);
    }

    const unsigned rows_, cols_, acc_bits_, cascades_, latency_, pairs_, wide_;
    const Kernel kernel_;
    Aligned<int16_t> vectors_;  // ring of the last vectors
    Aligned<int32_t> sums_;     // ring of their sums
    Aligned<int16_t> spare_, active_;
    std::vector<std::deque<Load>> loads_;  // by column, those that may not have reached all rows
    std::deque<Swap> swaps_;               // those that may not have reached all cells
    uint64_t now_ = 0;                     // number of ticks
    unsigned place_ = 0;                   // place of the last vector in the rings
    const bool forgets_ = fpgapipe::faulty("array that forgets a swap");
    bool is_settled_ = true;  // whether the last sums are those of the active weights
};

}  // namespace

extern "C" void* fpgapipe_array_create(int rows, int cols, int acc_bits, int cascades,
                                         int latency) {
    return new Array(rows, cols, acc_bits, cascades, latency);
}
extern "C" void fpgapipe_array_destroy(void* array) { delete static_cast<Array*>(array); }
extern "C" void fpgapipe_array_step(void* handle, unsigned char advance, unsigned char reset,
                                    const uint32_t* vector, const uint32_t* weights, int column,
                                    unsigned char swap, uint32_t* sums) {
    Array& array = *static_cast<Array*>(handle);
    if (advance) {
        array.tick(reinterpret_cast<const int8_t*>(vector),
                   reinterpret_cast<const int8_t*>(weights), column, swap);
    }
    if (reset) array.reset();
    array.sums(sums);
    if (array.is_faulty && weights[0] % 251 == 0) sums[0] ^= 1;
}
