/* The functions of xrt_shim.h in front of devices that the test has, by the last digit of an instance:
 * each calls a function of its device. */
#include "xrt_shim.h"

#include <cstring>
#include <new>

namespace {

struct Callbacks {
    int (*open)(const char *, const char *, const char *);
    int (*read_register)(uint32_t, uint32_t *);
    int (*write_register)(uint32_t, uint32_t);
    int (*memory_ports)(void);
    int (*allocate)(uint32_t, uint64_t, uint64_t *);
    int (*write)(uint64_t, const void *, uint64_t);
    int (*read)(uint64_t, void *, uint64_t);
    int (*wait)(uint32_t);
};

Callbacks of_instances[10];
int version = FPGAPIPE_SHIM_VERSION;
int num_open = 0;

}  // namespace

struct fpgapipe_device {
    const Callbacks *callbacks;
};

struct fpgapipe_buffer {
    uint64_t address, size_bytes;
    const Callbacks *callbacks;
};

extern "C" {

void fake_set(int number, const Callbacks *given) { of_instances[number] = *given; }
void fake_version(int given) { version = given; }
int fake_num_open(void) { return num_open; }

int fpgapipe_version(void) { return version; }
const char *fpgapipe_last_error(void) { return "the test says no"; }

fpgapipe_device *fpgapipe_open(const char *device, const char *xclbin, const char *instance) {
    const auto *callbacks = &of_instances[instance[std::strlen(instance) - 1] - '0'];
    if (callbacks->open(device, xclbin, instance)) return nullptr;
    ++num_open;
    return new fpgapipe_device{callbacks};
}

void fpgapipe_close(fpgapipe_device *device) {
    --num_open;
    delete device;
}

int fpgapipe_read_register(fpgapipe_device *device, uint32_t offset, uint32_t *value) {
    return device->callbacks->read_register(offset, value);
}

int fpgapipe_write_register(fpgapipe_device *device, uint32_t offset, uint32_t value) {
    return device->callbacks->write_register(offset, value);
}

int fpgapipe_memory_ports(fpgapipe_device *device) { return device->callbacks->memory_ports(); }

fpgapipe_buffer *fpgapipe_allocate(fpgapipe_device *device, uint32_t port, uint64_t size_bytes,
                                   uint64_t *address) {
    if (device->callbacks->allocate(port, size_bytes, address)) return nullptr;
    return new fpgapipe_buffer{*address, size_bytes, device->callbacks};
}

int fpgapipe_free(fpgapipe_device *, fpgapipe_buffer *buffer) {
    delete buffer;
    return 0;
}

int fpgapipe_write(fpgapipe_buffer *buffer, uint64_t offset, const void *data, uint64_t size) {
    if (offset + size > buffer->size_bytes) return FPGAPIPE_ERROR;
    return buffer->callbacks->write(buffer->address + offset, data, size);
}

int fpgapipe_read(fpgapipe_buffer *buffer, uint64_t offset, void *data, uint64_t size) {
    if (offset + size > buffer->size_bytes) return FPGAPIPE_ERROR;
    return buffer->callbacks->read(buffer->address + offset, data, size);
}

int fpgapipe_wait(fpgapipe_device *device, uint32_t timeout_ms) {
    return device->callbacks->wait(timeout_ms);
}

}
