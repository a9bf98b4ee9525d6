// The words of the scratchpad: what the memories of dma/scratchpad.py hold, as bytes.
//
// The Verilog around it grants accesses and counts their cycles. In each cycle it first does the
// reads and then the writes that were accepted a cycle before, as the memories do.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "block_simd.hpp"
#include "native_archive.hpp"

namespace {

constexpr uint64_t word_bytes = 64, granule_bytes = 2;

class Words final : public fpgapipe::Substitute {
  public:
    // One more word than there are: the last one is followed by the first one.
    explicit Words(uint64_t bytes) : bytes_(bytes), memory_(bytes + word_bytes) {}

    // Read a word, and rotate it by some granules.
    void read(uint64_t address, unsigned turn, uint32_t* data) const {
        const uint64_t turned = granule_bytes * turn;
        const uint8_t* from = memory_.data() + address;
        auto* to = reinterpret_cast<uint8_t*>(data);
        std::memcpy(to + turned, from, word_bytes - turned);
        std::memcpy(to, from + (word_bytes - turned), turned);
        if (is_faulty_ && data[0] % 251 == 1) data[15] ^= 1;
    }

    void write(uint64_t address, const uint32_t* data, uint32_t mask) {
        const auto* from = reinterpret_cast<const uint8_t*>(data);
        uint8_t* to = memory_.data() + address;
        if (mask == UINT32_MAX) {
            std::memcpy(to, from, word_bytes);
        } else {
            for (unsigned i = 0; i < word_bytes / granule_bytes; ++i) {
                if (mask >> i & 1)
                    std::memcpy(to + granule_bytes * i, from + granule_bytes * i, granule_bytes);
            }
        }
        uint8_t* first = memory_.data();
        uint8_t* behind = first + bytes_;
        if (address < word_bytes) std::memcpy(behind, first, word_bytes);
        if (address > bytes_ - word_bytes) {
            std::memcpy(first, behind, address - (bytes_ - word_bytes));
        }
    }

    void archive(fpgapipe::Archive& archive) override {
        archive.raw(memory_.data(), memory_.size());
    }

  private:
    const bool is_faulty_ = fpgapipe::faulty("scratchpad");
    const uint64_t bytes_;
    std::vector<uint8_t> memory_;
};

}  // namespace

extern "C" void* fpgapipe_scratchpad_create(int address_bits) {
    return new Words(uint64_t(1) << address_bits);
}
extern "C" void fpgapipe_scratchpad_destroy(void* self) { delete static_cast<Words*>(self); }
extern "C" void fpgapipe_scratchpad_read(void* self, unsigned address, unsigned turn,
                                         uint32_t* data) {
    static_cast<Words*>(self)->read(address, turn, data);
}
extern "C" void fpgapipe_scratchpad_write(void* self, unsigned address, const uint32_t* data,
                                          const uint32_t* mask) {
    static_cast<Words*>(self)->write(address, data, *mask);
}
