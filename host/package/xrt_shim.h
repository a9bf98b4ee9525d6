/* C functions of a device that XRT reaches: the core as a user-managed kernel, and its memory.
 *
 * pyxrt has no access to registers of user-managed kernels, so a program that is not written in C++
 * calls these functions instead, for instance by ctypes. Functions that return int return 0 if they
 * succeeded and -1 if they failed; those that return a pointer return NULL if they failed. No
 * exception leaves them. A device may be used by one thread at a time, different devices by
 * different threads.
 */
#ifndef FPGAPIPE_XRT_SHIM_H
#define FPGAPIPE_XRT_SHIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FPGAPIPE_SHIM_VERSION 3
#define FPGAPIPE_OK 0
#define FPGAPIPE_ERROR (-1)
#define FPGAPIPE_TIMEOUT 1

typedef struct fpgapipe_device fpgapipe_device;
typedef struct fpgapipe_buffer fpgapipe_buffer;

/* FPGAPIPE_SHIM_VERSION of the library that was loaded. */
int fpgapipe_version(void);

/* What went wrong in the last call of this thread that failed. The text is valid until the thread
 * calls another of these functions. */
const char *fpgapipe_last_error(void);

/* Load an xclbin and open one of its kernels' instances for exclusive use. A card that has the file
 * already keeps it, so that several instances can be open.
 *
 * device: PCIe address such as "0000:3b:00.1", or a number such as "0".
 * xclbin: path of the file.
 * instance: name of the kernel's instance, such as "fpgapipe_core_0". */
fpgapipe_device *fpgapipe_open(const char *device, const char *xclbin, const char *instance);

/* Close a device and free all of its buffers. NULL is allowed. */
void fpgapipe_close(fpgapipe_device *device);

/* Registers have 32 bits; the offset is in bytes from the first one (docs/registers.md). */
int fpgapipe_read_register(fpgapipe_device *device, uint32_t offset, uint32_t *value);
int fpgapipe_write_register(fpgapipe_device *device, uint32_t offset, uint32_t value);

/* Number of memory ports of the core: 1 or 2. */
int fpgapipe_memory_ports(fpgapipe_device *device);

/* Allocate memory that a memory port of the core can reach. Its address goes to *address; it is that
 * behind the port, which is the one that the core uses if it has one port. */
fpgapipe_buffer *fpgapipe_allocate(fpgapipe_device *device, uint32_t port, uint64_t size_bytes,
                                   uint64_t *address);
int fpgapipe_free(fpgapipe_device *device, fpgapipe_buffer *buffer);

/* Move bytes to the device's memory and back. The part of a buffer begins at offset_bytes. */
int fpgapipe_write(fpgapipe_buffer *buffer, uint64_t offset_bytes, const void *data,
                   uint64_t size_bytes);
int fpgapipe_read(fpgapipe_buffer *buffer, uint64_t offset_bytes, void *data,
                  uint64_t size_bytes);

/* Wait for the core's interrupt. FPGAPIPE_TIMEOUT is returned after timeout_ms without one.
 * IRQ_ENABLE says at which events the core raises it; it stays high until CONTROL.clear_status. */
int fpgapipe_wait(fpgapipe_device *device, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
