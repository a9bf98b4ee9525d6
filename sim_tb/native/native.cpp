// Drives a Verilated design without cocotb: clock, registers over AXI4-Lite, memory over AXI4.
//
// This file is compiled together with the model (class Vtop) into one shared library, which
// native.py builds and calls through ctypes. Any design with `clk` and `rst` will do; the groups of
// ports s_axil_*, m_axi_*, m_axi1_*, m_axis_link{n}_* with s_axis_link{n}_*, and irq are used if the
// design has them. All state is in the instance, so instances may run in different threads.
//
// A cycle consists of two evaluations. The inputs that are driven here depend only on the state
// here, so they are driven first, and the evaluation at the falling edge settles the combinational
// logic behind them. The values that both sides then show are those that the rising edge samples.

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "Vtop.h"
#include "native_archive.hpp"
#include "native_channels.hpp"
#include "native_link.hpp"
#include "native_memory.hpp"
#include "native_model_state.hpp"
#include "verilated.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Trace = VerilatedFstC;
#elif VM_TRACE_VCD
#include "verilated_vcd_c.h"
using Trace = VerilatedVcdC;
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wide ports are copied as bytes");

// Verilator's own versions of these functions end the process, or mark the context that was created
// last in this thread. -DVL_USER_FATAL, VL_USER_STOP and VL_USER_FINISH leave them out; those here
// raise an exception, which becomes the error text of the device.
void vl_fatal(const char* file, int line, const char*, const char* message) {
    throw std::runtime_error(std::string(message) + " (" + file + ":" + std::to_string(line) + ")");
}
void vl_stop(const char* file, int line, const char*) { vl_fatal(file, line, "", "$stop"); }
void vl_finish(const char* file, int line, const char*) { vl_fatal(file, line, "", "$finish"); }

namespace {

template <class V, class = void>
struct HasRegisters : std::false_type {};
template <class V>
struct HasRegisters<V, std::void_t<decltype(std::declval<V&>().s_axil_awaddr)>> : std::true_type {};

template <class V, class = void>
struct HasIrq : std::false_type {};
template <class V>
struct HasIrq<V, std::void_t<decltype(std::declval<V&>().irq)>> : std::true_type {};

template <class V, class = void>
struct HasIdleClocks : std::false_type {};
template <class V>
struct HasIdleClocks<V, std::void_t<decltype(std::declval<V&>().idle_clk)>> : std::true_type {};

// Engines that rest get no edge (idle_clocks.py); the design says before each edge which do not.
template <class V>
void fall(V& top) {
    top.clk = 0;
    if constexpr (HasIdleClocks<V>::value) top.idle_clk = 0;
    top.eval();
}
template <class V>
void rise(V& top) {
    top.clk = 1;
    if constexpr (HasIdleClocks<V>::value) top.idle_clk = top.idle_wake;
    top.eval();
}

// State of a device that native_cluster.cpp reads; it has the layout of its structure of this name.
struct State {
    uint64_t irq_cycle;  // as in the statistics
    uint64_t active_cycle;
    uint64_t failed;
};

template <class V>
class Device {
  public:
    explicit Device(const Config& config) : context_(std::make_unique<VerilatedContext>()) {
#if VM_TRACE
        context_->traceEverOn(true);
#endif
        top_ = std::make_unique<V>(context_.get(), "");
        links_ = std::make_unique<Links<V>>(*top_, status_);
        channels_ = std::make_unique<Channels<V>>(*top_, status_);
        if constexpr (HasMemory<V>::value) {
            memory_ = std::make_unique<Memory<V>>(*top_, config, status_);
        }
        if constexpr (HasTwoPorts<V>::value) {
            second_ = std::make_unique<SecondMemory<V>>(*top_, config, status_);
        }
    }

    ~Device() {
        guarded([&] { top_->final(); });
        // The model unregisters its scopes from the context that this thread used last.
        Verilated::threadContextp(context_.get());
    }

    void reset(uint64_t cycles) {
        status_ = {};
        irq_cycle_ = never;
        links_->clear();
        channels_->clear();
        if constexpr (HasRegisters<V>::value) stop_asking();
        for_memories([](auto& memory) { memory.clear(); });
#if VM_TRACE
        trace_.reset();  // its times cannot start again at 0
#endif
        top_->rst = 1;
        // The design makes its blocks in the first evaluation.
        fpgapipe::Substitute::made = &blocks_;
        guarded([&] {
            for (uint64_t i = 0; i < cycles; ++i) edges([] {});
        });
        fpgapipe::Substitute::made = nullptr;
        top_->rst = 0;
    }

    // The state between two cycles, without the bytes of the memory, the wires' specifications and
    // waves. The bytes are valid until the next call.
    const std::vector<uint8_t>& save() {
        saved_.clear();
        guarded([&] {
            std::vector<uint8_t> model = fpgapipe::model_state(*top_);
            Archive archive(saved_);
            archive(model);
            for (fpgapipe::Substitute* block : blocks_) {
                auto address = reinterpret_cast<uintptr_t>(block);
                archive(address);
                block->archive(archive);
            }
            archive_surroundings(archive);
        });
        return saved_;
    }

    // Continue from a state that this library or a copy of it has saved.
    void restore(const uint8_t* data, uint64_t size) {
        status_ = {};
        guarded([&] {
            const std::vector<uint8_t> fresh = fpgapipe::model_state(*top_);
            std::vector<uint8_t> model;
            Archive archive(data, size);
            archive(model);
            if (model.size() != fresh.size()) throw std::runtime_error("the state is of another design");
            for (fpgapipe::Substitute* block : blocks_) {
                uintptr_t address = 0;
                archive(address);
                fpgapipe::move_handle(model, fresh, address, reinterpret_cast<uintptr_t>(block));
                block->archive(archive);
            }
            archive_surroundings(archive);
            if (!archive.at_end()) throw std::runtime_error("the state is too long");
            fpgapipe::set_model_state(*top_, model);
        });
    }

    // Run for `cycles` cycles, or until an error, or until irq is high if `until_irq` is set.
    uint64_t run(uint64_t cycles, bool until_irq) {
        const uint64_t begin = status_.cycle;
        guarded([&] {
            const uint64_t end = begin + std::min(cycles, never - begin);
            while (status_.cycle != end && status_.error.empty()) {
                if (until_irq && irq()) break;
                step();
            }
        });
        return status_.cycle - begin;
    }

    // Run one transaction on the registers and return the response, or -1 after an error. If the
    // transaction is `resumable` and takes more than `limit` cycles, the result is -2, and the next
    // call continues it.
    int access(uint32_t address, uint32_t* value, bool write, uint64_t limit, bool resumable) {
        if constexpr (!HasRegisters<V>::value) {
            status_.fail("the design has no registers (ports s_axil_*)");
            return -1;
        } else {
            if (!accessing_) ask(address, *value, write);
            guarded([&] {
                for (uint64_t i = 0; i < limit && !answered_ && status_.error.empty(); ++i) step();
            });
            if (resumable && !answered_ && status_.error.empty()) return -2;
            stop_asking();
            if (!answered_ && status_.error.empty()) {
                status_.fail("the design did not answer a register access within " +
                     std::to_string(limit) + " cycles");
            }
            if (!status_.error.empty()) return -1;
            if (!write) *value = answer_;
            return answer_code_;
        }
    }

    void inject(const Fault& fault) {
        for_memories([&](auto& memory) { memory.inject(fault); });
    }

    void heal() {
        for_memories([](auto& memory) { memory.heal(); });
    }

    bool waves(const char* path, uint64_t begin, uint64_t end) {
#if VM_TRACE
        trace_ = std::make_unique<Trace>();
        trace_->set_time_unit("1ns");
        trace_->set_time_resolution("1ns");
        top_->trace(trace_.get(), 99);
        trace_->open(path);
        trace_begin_ = begin;
        trace_end_ = end;
        return trace_->isOpen();
#else
        (void)path, (void)begin, (void)end;
        return false;
#endif
    }

    void flush() {
#if VM_TRACE
        if (trace_) trace_->flush();
#endif
    }

    Statistics statistics() {
        Statistics statistics{};
        if constexpr (HasMemory<V>::value) statistics = memory_->statistics();
        if constexpr (HasTwoPorts<V>::value) statistics.add(second_->memory.statistics());
        statistics.cycle = status_.cycle;
        statistics.irq = irq();
        statistics.irq_cycle = irq_cycle_;
        return statistics;
    }

    State state() const {
        State state{irq_cycle_, never, !status_.error.empty()};
        for_memories([&](auto& memory) {
            state.active_cycle = later(state.active_cycle, memory.active_cycle());
        });
        return state;
    }

    uint64_t cycle() const { return status_.cycle; }
    const char* error() const { return status_.error.c_str(); }
    Links<V>& links() { return *links_; }
    Channels<V>& channels() { return *channels_; }

  private:
    // Do something with what is behind each memory port.
    template <class F>
    void for_memories([[maybe_unused]] F&& act) const {
        if constexpr (HasMemory<V>::value) act(*memory_);
        if constexpr (HasTwoPorts<V>::value) act(second_->memory);
    }

    void archive_surroundings(Archive& archive) {
        archive(status_.cycle, status_.error, irq_cycle_, accessing_, answered_, aw_taken_,
                w_taken_, ar_taken_, answer_, answer_code_);
        for_memories([&](auto& memory) { memory.archive(archive); });
        links_->archive(archive);
        channels_->archive(archive);
    }

    bool irq() {
        if constexpr (HasIrq<V>::value) return top_->irq != 0;
        return false;
    }

    template <class F>
    void guarded(F&& body) {
        try {
            body();
        } catch (const std::exception& error) {
            status_.fail(std::string("the model stopped: ") + error.what());
        }
    }

    template <class F>
    void edges(F&& between) {
        fall(*top_);
        dump(0);
        between();
        rise(*top_);
        dump(1);
    }

    void step() {
        for_memories([](auto& memory) { memory.offer(); });
        if constexpr (has_links<V>) links_->offer();
        if constexpr (HasChannels<V>::value) channels_->offer();
        edges([this] {
            for_memories([](auto& memory) { memory.take(); });
            if constexpr (has_links<V>) links_->take();
            if constexpr (HasChannels<V>::value) channels_->take();
            if constexpr (HasRegisters<V>::value) {
                if (accessing_) take_registers();
            }
        });
        ++status_.cycle;
        if constexpr (HasIrq<V>::value) {
            if (!top_->irq) {
                irq_cycle_ = never;
            } else if (irq_cycle_ == never) {
                irq_cycle_ = status_.cycle;
            }
        }
        if constexpr (HasRegisters<V>::value) {
            if (accessing_) drop_taken();
        }
    }

    void dump(unsigned edge) {
#if VM_TRACE
        if (trace_ && status_.cycle >= trace_begin_ && status_.cycle < trace_end_)
            trace_->dump(10 * status_.cycle + 5 * edge);
#else
        (void)edge;
#endif
    }

    void ask(uint32_t address, uint32_t value, bool write) {
        V& t = *top_;
        if (write) {
            t.s_axil_awaddr = address;
            t.s_axil_wdata = value;
            t.s_axil_wstrb = 0xF;
            t.s_axil_awvalid = t.s_axil_wvalid = t.s_axil_bready = 1;
        } else {
            t.s_axil_araddr = address;
            t.s_axil_arvalid = t.s_axil_rready = 1;
        }
        accessing_ = true;
        answered_ = false;
    }

    void stop_asking() {
        V& t = *top_;
        accessing_ = false;
        t.s_axil_awvalid = t.s_axil_wvalid = t.s_axil_bready = 0;
        t.s_axil_arvalid = t.s_axil_rready = 0;
    }

    void take_registers() {
        V& t = *top_;
        aw_taken_ = t.s_axil_awvalid && t.s_axil_awready;
        w_taken_ = t.s_axil_wvalid && t.s_axil_wready;
        ar_taken_ = t.s_axil_arvalid && t.s_axil_arready;
        if (t.s_axil_bready && t.s_axil_bvalid) {
            if (t.s_axil_awvalid > aw_taken_ || t.s_axil_wvalid > w_taken_)
                status_.fail("s_axil_bvalid came before its request");
            answered_ = true;
            answer_code_ = t.s_axil_bresp;
        }
        if (t.s_axil_rready && t.s_axil_rvalid) {
            if (t.s_axil_arvalid > ar_taken_) status_.fail("s_axil_rvalid came before its request");
            answered_ = true;
            answer_code_ = t.s_axil_rresp;
            answer_ = t.s_axil_rdata;
        }
    }

    void drop_taken() {
        V& t = *top_;
        if (aw_taken_) t.s_axil_awvalid = 0;
        if (w_taken_) t.s_axil_wvalid = 0;
        if (ar_taken_) t.s_axil_arvalid = 0;
        if (answered_) t.s_axil_bready = t.s_axil_rready = 0;
    }

    // Members are destroyed in reverse order, so those that refer to the design go before it.
    std::unique_ptr<VerilatedContext> context_;
    std::unique_ptr<V> top_;
    Status status_;
    std::unique_ptr<Memory<V>> memory_;
    std::unique_ptr<SecondMemory<V>> second_;
    std::unique_ptr<Links<V>> links_;
    std::unique_ptr<Channels<V>> channels_;
    std::vector<fpgapipe::Substitute*> blocks_;  // those in C++, which the design owns
    std::vector<uint8_t> saved_;
    uint64_t irq_cycle_ = never;  // first cycle since which irq is high

    // The registers.
    bool accessing_ = false, answered_ = false;
    bool aw_taken_ = false, w_taken_ = false, ar_taken_ = false;
    uint32_t answer_ = 0;
    int answer_code_ = 0;

#if VM_TRACE
    std::unique_ptr<Trace> trace_;
    uint64_t trace_begin_ = 0, trace_end_ = 0;
#endif
};

// Only clock a design; returns seconds of this thread's processor time, the reset not included.
template <class V>
double bare(uint64_t cycles) {
    VerilatedContext context;
    V top(&context, "");
    auto clock = [&](uint64_t count) {
        for (uint64_t i = 0; i < count; ++i) {
            fall(top);
            rise(top);
        }
    };
    top.rst = 1;
    clock(4);
    top.rst = 0;
    clock(1);
    auto now = [] {
        timespec time;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return time.tv_sec + 1e-9 * time.tv_nsec;
    };
    const double begin = now();
    clock(cycles);
    const double seconds = now() - begin;
    top.final();
    return seconds;
}

}  // namespace

using Handle = Device<Vtop>;

// What the design has. Bit 0: a memory bus, bit 1: registers, bit 2: irq, bit 3: waves, bit 4: two
// memory ports. From bit 8 on: bytes per beat of the memory bus.
EXPORT uint32_t fpgapipe_features() {
    uint32_t features = bus_bytes<Vtop>() << 8;
    features |= HasMemory<Vtop>::value << 0;
    features |= HasRegisters<Vtop>::value << 1;
    features |= HasIrq<Vtop>::value << 2;
    features |= HasTwoPorts<Vtop>::value << 4;
#if VM_TRACE
    features |= 1 << 3;
#endif
    return features;
}

EXPORT Handle* fpgapipe_create(const Config* config) {
    try {
        return new Handle(*config);
    } catch (const std::exception&) {
        return nullptr;
    }
}
EXPORT void fpgapipe_destroy(Handle* device) { delete device; }
EXPORT void fpgapipe_reset(Handle* device, uint64_t cycles) { device->reset(cycles); }
EXPORT uint64_t fpgapipe_run(Handle* device, uint64_t cycles, int until_irq) {
    return device->run(cycles, until_irq);
}
EXPORT void fpgapipe_state(Handle* device, State* state) { *state = device->state(); }
EXPORT uint64_t fpgapipe_cycle(const Handle* device) { return device->cycle(); }
EXPORT int fpgapipe_access(Handle* device, uint32_t address, uint32_t* value, int write,
                           uint64_t limit, int resumable) {
    return device->access(address, value, write, limit, resumable);
}
// Bytes per beat of a link port; 0 if the design has no port of that number.
EXPORT uint32_t fpgapipe_link_bytes(uint32_t port) { return Links<Vtop>::bytes(port); }
EXPORT void fpgapipe_attach(Handle* device, uint32_t port, const WireConfig* config) {
    device->links().attach(port, *config);
}
// Beats that are on a port's wire: a pointer to the first one, and their number in `count`.
EXPORT const LinkBeat* fpgapipe_flying(Handle* device, uint32_t port, uint64_t* count) {
    const auto* beats = device->links().flying(port);
    *count = beats ? beats->size() : 0;
    return *count ? beats->data() : nullptr;
}
EXPORT void fpgapipe_taken(Handle* device, uint32_t port) {
    if (auto* beats = device->links().flying(port)) beats->clear();
}
EXPORT void fpgapipe_give(Handle* device, uint32_t port, const LinkBeat* beats, uint64_t count) {
    device->links().give(port, beats, count);
}
EXPORT void fpgapipe_counts(Handle* device, uint32_t port, WireCounts* counts) {
    *counts = device->links().counts(port);
}
EXPORT void fpgapipe_channels_configure(Handle* device, const ChannelsConfig* config) {
    device->channels().configure(*config);
}
EXPORT void fpgapipe_channels_status(Handle* device, ChannelsStatus* status) {
    *status = device->channels().status();
}
// End the link's session in the next cycle.
EXPORT void fpgapipe_channels_clear(Handle* device) { device->channels().clear_link(); }
EXPORT void fpgapipe_inject(Handle* device, uint64_t begin, uint64_t end, int response, int reads,
                            int writes) {
    device->inject({begin, end, uint8_t(response), reads != 0, writes != 0});
}
EXPORT void fpgapipe_heal(Handle* device) { device->heal(); }
EXPORT int fpgapipe_waves(Handle* device, const char* path, uint64_t begin, uint64_t end) {
    return device->waves(path, begin, end);
}
EXPORT void fpgapipe_flush(Handle* device) { device->flush(); }
EXPORT void fpgapipe_statistics(Handle* device, Statistics* statistics) {
    *statistics = device->statistics();
}
EXPORT const uint8_t* fpgapipe_save(Handle* device, uint64_t* size) {
    const auto& saved = device->save();
    *size = saved.size();
    return saved.data();
}
EXPORT void fpgapipe_restore(Handle* device, const uint8_t* data, uint64_t size) {
    device->restore(data, size);
}
EXPORT const char* fpgapipe_error(const Handle* device) { return device->error(); }
EXPORT double fpgapipe_bare(uint64_t cycles) {
    try {
        return bare<Vtop>(cycles);
    } catch (const std::exception&) {
        return -1;
    }
}
