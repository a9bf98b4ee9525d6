// The functions of xrt_shim.h, by xrt::ip and xrt::bo.
#include "xrt_shim.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "xrt/xrt_bo.h"
#include "xrt/xrt_device.h"
// Newer releases of XRT keep these headers below xrt/.
#if __has_include("xrt/experimental/xrt_ip.h")
#include "xrt/experimental/xrt_ip.h"
#include "xrt/experimental/xrt_xclbin.h"
#else
#include "experimental/xrt_ip.h"
#include "experimental/xrt_xclbin.h"
#endif

struct fpgapipe_buffer {
    xrt::bo memory;
    uint64_t size_bytes;
};

struct fpgapipe_device {
    xrt::device card;
    xrt::ip core;
    std::vector<uint32_t> memory_groups;  // of each memory port
    std::optional<xrt::ip::interrupt> interrupt;
    std::vector<std::unique_ptr<fpgapipe_buffer>> buffers;
};

namespace {

thread_local std::string last_error;

// Run an action; an exception becomes the result `failed` and the text of the last error.
template <typename Action, typename Result>
Result guarded(Result failed, Action action) noexcept {
    try {
        last_error.clear();
        return action();
    } catch (const std::exception &error) {
        last_error = error.what();
    } catch (...) {
        last_error = "an exception that is no std::exception";
    }
    return failed;
}

xrt::device opened(const std::string &device) {
    if (device.empty()) throw std::invalid_argument("the device has no name");
    if (device.find_first_not_of("0123456789") != std::string::npos) return xrt::device(device);
    return xrt::device(static_cast<unsigned int>(std::stoul(device)));
}

// The kernel's instance of a name. Files have the names of both, kernel:instance.
xrt::xclbin::ip instance_of(const xrt::xclbin &xclbin, const std::string &instance) {
    std::string known;
    for (const auto &ip : xclbin.get_ips()) {
        const auto name = ip.get_name();
        if (name.substr(name.find(':') + 1) == instance) return ip;
        known += (known.empty() ? "" : ", ") + name;
    }
    throw std::runtime_error("the xclbin has no " + instance + "; it has: " + known);
}

// The name by which xrt::ip tells an instance from a kernel: kernel:{instance}.
std::string braced(const std::string &name) {
    const auto colon = name.find(':');
    return name.substr(0, colon + 1) + "{" + name.substr(colon + 1) + "}";
}

// The memory groups that the kernel's masters are connected to, in the order of the arguments that
// point there. A buffer elsewhere would be out of the core's reach. A master that reaches several
// channels of an HBM is connected to each of them and, with a higher index, to the group of them
// all. XRT's own kernels take the highest index, too; a single channel would hold no more than 256
// or 512 MB.
std::vector<uint32_t> memories_of(const xrt::xclbin::ip &ip) {
    std::vector<uint32_t> found;
    for (const auto &argument : ip.get_args()) {
        std::optional<uint32_t> highest;
        for (const auto &memory : argument.get_mems())
            highest = std::max(highest.value_or(0), static_cast<uint32_t>(memory.get_index()));
        if (highest) found.push_back(*highest);
    }
    if (!found.empty()) return found;
    throw std::runtime_error("no argument of " + ip.get_name() + " is connected to a memory");
}

void check_range(const fpgapipe_buffer *buffer, uint64_t offset_bytes, uint64_t size_bytes) {
    if (!buffer) throw std::invalid_argument("there is no buffer");
    if (offset_bytes > buffer->size_bytes || size_bytes > buffer->size_bytes - offset_bytes)
        throw std::out_of_range("bytes " + std::to_string(offset_bytes) + " and " +
                                std::to_string(size_bytes) + " more are outside a buffer of " +
                                std::to_string(buffer->size_bytes) + " bytes");
}

void check_device(const fpgapipe_device *device) {
    if (!device) throw std::invalid_argument("there is no device");
}

}  // namespace

extern "C" {

int fpgapipe_version(void) { return FPGAPIPE_SHIM_VERSION; }

const char *fpgapipe_last_error(void) { return last_error.c_str(); }

fpgapipe_device *fpgapipe_open(const char *device, const char *xclbin, const char *instance) {
    return guarded(static_cast<fpgapipe_device *>(nullptr), [&] {
        if (!device || !xclbin || !instance)
            throw std::invalid_argument("device, xclbin and instance are needed");
        auto card = opened(device);
        const xrt::xclbin file{std::string(xclbin)};
        const auto found = instance_of(file, instance);  // its names are the file's
        const auto groups = memories_of(found);
        // XRT leaves a card as it is that has this file already, for another instance of it.
        const auto uuid = card.load_xclbin(file);
        xrt::ip core(card, uuid, braced(found.get_name()));
        return new fpgapipe_device{card, core, groups, std::nullopt, {}};
    });
}

void fpgapipe_close(fpgapipe_device *device) {
    guarded(FPGAPIPE_ERROR, [&] {
        delete device;
        return FPGAPIPE_OK;
    });
}

int fpgapipe_read_register(fpgapipe_device *device, uint32_t offset, uint32_t *value) {
    return guarded(FPGAPIPE_ERROR, [&] {
        check_device(device);
        if (!value) throw std::invalid_argument("there is no place for the value");
        *value = device->core.read_register(offset);
        return FPGAPIPE_OK;
    });
}

int fpgapipe_write_register(fpgapipe_device *device, uint32_t offset, uint32_t value) {
    return guarded(FPGAPIPE_ERROR, [&] {
        check_device(device);
        device->core.write_register(offset, value);
        return FPGAPIPE_OK;
    });
}

int fpgapipe_memory_ports(fpgapipe_device *device) {
    return guarded(FPGAPIPE_ERROR, [&] {
        check_device(device);
        return static_cast<int>(device->memory_groups.size());
    });
}

fpgapipe_buffer *fpgapipe_allocate(fpgapipe_device *device, uint32_t port, uint64_t size_bytes,
                                   uint64_t *address) {
    return guarded(static_cast<fpgapipe_buffer *>(nullptr), [&] {
        check_device(device);
        if (port >= device->memory_groups.size())
            throw std::out_of_range("the core has no memory port " + std::to_string(port));
        if (!address) throw std::invalid_argument("there is no place for the address");
        if (!size_bytes || size_bytes > std::numeric_limits<size_t>::max())
            throw std::invalid_argument("a buffer needs at least one byte");
        xrt::bo memory(device->card, static_cast<size_t>(size_bytes), xrt::bo::flags::normal,
                       device->memory_groups[port]);
        auto buffer = std::make_unique<fpgapipe_buffer>(fpgapipe_buffer{memory, size_bytes});
        *address = buffer->memory.address();
        device->buffers.push_back(std::move(buffer));
        return device->buffers.back().get();
    });
}

int fpgapipe_free(fpgapipe_device *device, fpgapipe_buffer *buffer) {
    return guarded(FPGAPIPE_ERROR, [&] {
        check_device(device);
        for (auto each = device->buffers.begin(); each != device->buffers.end(); ++each)
            if (each->get() == buffer) {
                device->buffers.erase(each);
                return FPGAPIPE_OK;
            }
        throw std::invalid_argument("the buffer is none of this device");
    });
}

int fpgapipe_write(fpgapipe_buffer *buffer, uint64_t offset_bytes, const void *data,
                   uint64_t size_bytes) {
    return guarded(FPGAPIPE_ERROR, [&] {
        check_range(buffer, offset_bytes, size_bytes);
        if (!size_bytes) return FPGAPIPE_OK;
        if (!data) throw std::invalid_argument("there are no data");
        buffer->memory.write(data, size_bytes, offset_bytes);
        buffer->memory.sync(XCL_BO_SYNC_BO_TO_DEVICE, size_bytes, offset_bytes);
        return FPGAPIPE_OK;
    });
}

int fpgapipe_read(fpgapipe_buffer *buffer, uint64_t offset_bytes, void *data,
                  uint64_t size_bytes) {
    return guarded(FPGAPIPE_ERROR, [&] {
        check_range(buffer, offset_bytes, size_bytes);
        if (!size_bytes) return FPGAPIPE_OK;
        if (!data) throw std::invalid_argument("there is no place for the data");
        buffer->memory.sync(XCL_BO_SYNC_BO_FROM_DEVICE, size_bytes, offset_bytes);
        buffer->memory.read(data, size_bytes, offset_bytes);
        return FPGAPIPE_OK;
    });
}

int fpgapipe_wait(fpgapipe_device *device, uint32_t timeout_ms) {
    return guarded(FPGAPIPE_ERROR, [&] {
        check_device(device);
        // The core holds its interrupt until it is cleared, so one that came before is seen too.
        if (!device->interrupt) device->interrupt = device->core.create_interrupt_notify();
        const auto came = device->interrupt->wait(std::chrono::milliseconds(timeout_ms));
        return came == std::cv_status::no_timeout ? FPGAPIPE_OK : FPGAPIPE_TIMEOUT;
    });
}

}  // extern "C"
