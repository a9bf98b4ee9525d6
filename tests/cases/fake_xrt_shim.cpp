/* The functions of xrt_shim.h in front of a device that the test has: each calls a function of it. */
#include "xrt_shim.h"

#include <cstring>
#include <new>

namespace {

struct Callbacks {
    int (*open)(const char *, const char *, const char *);
    int (*read_register)(uint32_t, uint32_t *);
    int (*write_register)(uint32_t, uint32_t);
    int (*allocate)(uint64_t, uint64_t *);
    int (*write)(uint64_t, const void *, uint64_t);
    int (*read)(uint64_t, void *, uint64_t);
    int (*wait)(uint32_t);
};

Callbacks callbacks;
int version = FPGAPIPE_SHIM_VERSION;
int num_open = 0;

}  // namespace

struct fpgapipe_device {
    int unused;
};

struct fpgapipe_buffer {
    uint64_t address, size_bytes;
};

extern "C" {

void fake_set(const Callbacks *given) { callbacks = *given; }
void fake_version(int given) { version = given; }
int fake_num_open(void) { return num_open; }

int fpgapipe_version(void) { return version; }
const char *fpgapipe_last_error(void) { return "the test says no"; }

fpgapipe_device *fpgapipe_open(const char *device, const char *xclbin, const char *instance) {
    if (callbacks.open(device, xclbin, instance)) return nullptr;
    ++num_open;
    return new fpgapipe_device();
}

void fpgapipe_close(fpgapipe_device *device) {
    --num_open;
    delete device;
}

int fpgapipe_read_register(fpgapipe_device *, uint32_t offset, uint32_t *value) {
    return callbacks.read_register(offset, value);
}

int fpgapipe_write_register(fpgapipe_device *, uint32_t offset, uint32_t value) {
    return callbacks.write_register(offset, value);
}

fpgapipe_buffer *fpgapipe_allocate(fpgapipe_device *, uint64_t size_bytes, uint64_t *address) {
    if (callbacks.allocate(size_bytes, address)) return nullptr;
    return new fpgapipe_buffer{*address, size_bytes};
}

int fpgapipe_free(fpgapipe_device *, fpgapipe_buffer *buffer) {
    delete buffer;
    return 0;
}

int fpgapipe_write(fpgapipe_buffer *buffer, uint64_t offset, const void *data, uint64_t size) {
    if (offset + size > buffer->size_bytes) return FPGAPIPE_ERROR;
    return callbacks.write(buffer->address + offset, data, size);
}

int fpgapipe_read(fpgapipe_buffer *buffer, uint64_t offset, void *data, uint64_t size) {
    if (offset + size > buffer->size_bytes) return FPGAPIPE_ERROR;
    return callbacks.read(buffer->address + offset, data, size);
}

int fpgapipe_wait(fpgapipe_device *, uint32_t timeout_ms) { return callbacks.wait(timeout_ms); }

}
