// A libcuda.so.1 over host memory, for the real cuda.bindings to load where there is no device.
//
// It has the calls that kvlab makes, refuses what a driver refuses, and hands out memory that kills the process
// when it is touched without access. A launch reads the addresses that it was said to until it ends; memory that
// is taken from under it kills the device. What a test sets and asks is in standin.h. Signatures are cuda.h's.

#define _GNU_SOURCE
#include "standin.h"

// --- the device

CUresult CUDAAPI cuInit(unsigned flags) {
  ENTER(0);
  return leave(flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER(0);
  *device = 0;
  return leave(ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  ENTER(0);
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  return leave(device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER(0);
  REQUIRE(!device, CUDA_ERROR_INVALID_DEVICE);
  contexts++;
  *context = (CUcontext)&contexts;
  return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  ENTER(0);
  REQUIRE(!device && contexts > 0, CUDA_ERROR_INVALID_CONTEXT);
  contexts--;
  return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  ENTER(0);
  current = context;
  return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *total) {
  ENTER(1);
  *free = capacity - used;
  *total = capacity;
  return leave(CUDA_SUCCESS);
}

static int of_the_device(const CUmemAllocationProp *wanted) {
  return wanted->type == CU_MEM_ALLOCATION_TYPE_PINNED && wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         wanted->location.id == 0;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *wanted,
                                               CUmemAllocationGranularity_flags option) {
  ENTER(0);
  (void)option;
  *size = granularity;
  return leave(of_the_device(wanted) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

// --- addresses

static int whole(size_t nbytes) { return nbytes > 0 && nbytes % granularity == 0; }

static int within(uintptr_t inner, size_t inner_bytes, uintptr_t outer, size_t outer_bytes) {
  return inner >= outer && inner + inner_bytes <= outer + outer_bytes;
}

static int meet(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

static void *nothing_at(uintptr_t address, size_t nbytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (address ? MAP_FIXED : 0);
  return mmap((void *)address, nbytes, PROT_NONE, flags, -1, 0);
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t nbytes, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags) {
  ENTER(1);
  REQUIRE(whole(nbytes) && !alignment && !hint && !flags && space_count < RANGES, CUDA_ERROR_INVALID_VALUE);
  void *found = nothing_at(0, nbytes + granularity);
  REQUIRE(found != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  uintptr_t start = (uintptr_t)found, first = (start + granularity - 1) / granularity * granularity;
  if (first > start) munmap(found, first - start);
  munmap((void *)(first + nbytes), start + granularity - first);
  spaces[space_count++] = (Range){first, nbytes};
  *address = first;
  return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t nbytes) {
  ENTER(1);
  int found = -1;
  for (int i = 0; i < space_count; i++)
    if (spaces[i].address == address && spaces[i].nbytes == nbytes) found = i;
  REQUIRE(found >= 0, CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < mapping_count; i++)
    REQUIRE(!meet(mappings[i].address, mappings[i].nbytes, address, nbytes), CUDA_ERROR_INVALID_VALUE);
  munmap((void *)address, nbytes);
  spaces[found] = spaces[--space_count];
  return leave(CUDA_SUCCESS);
}

// --- memory

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t nbytes, const CUmemAllocationProp *wanted,
                             unsigned long long flags) {
  ENTER(1);
  REQUIRE(whole(nbytes) && of_the_device(wanted) && !flags, CUDA_ERROR_INVALID_VALUE);
  int i = 1;  // memory that one handle left goes to the next of its size
  while (i <= handle_count && (handles[i].used || handles[i].nbytes != nbytes)) i++;
  REQUIRE(used + nbytes <= capacity && i < HANDLES, CUDA_ERROR_OUT_OF_MEMORY);
  if (i > handle_count) {
    handle_count = i;
    handles[i].at = top;
    top += nbytes;
  }
  handles[i] = (Handle){nbytes, handles[i].at, 1, 0, 0};
  used += nbytes;
  *handle = i;
  return leave(CUDA_SUCCESS);
}

static int alive(CUmemGenericAllocationHandle handle) {
  return handle > 0 && handle <= (unsigned long long)handle_count && handles[handle].used && !handles[handle].released;
}

static void forget(int i) {  // memory goes when it is released and mapped nowhere
  if (!handles[i].released || handles[i].mappings) return;
  fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, handles[i].at, handles[i].nbytes);
  used -= handles[i].nbytes;
  handles[i].used = 0;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER(1);
  REQUIRE(alive(handle), CUDA_ERROR_INVALID_VALUE);
  handles[handle].released = 1;
  forget(handle);
  return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t nbytes, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  ENTER(1);
  REQUIRE(whole(nbytes) && address % granularity == 0 && alive(handle) && !flags, CUDA_ERROR_INVALID_VALUE);
  int inside = 0;
  for (int i = 0; i < space_count; i++) inside |= within(address, nbytes, spaces[i].address, spaces[i].nbytes);
  REQUIRE(inside && mapping_count < MAPPINGS, CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < mapping_count; i++)
    REQUIRE(!meet(mappings[i].address, mappings[i].nbytes, address, nbytes), CUDA_ERROR_INVALID_VALUE);
  REQUIRE(!offset && nbytes == handles[handle].nbytes, CUDA_ERROR_NOT_SUPPORTED);
  void *here = mmap((void *)address, nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory, handles[handle].at);
  REQUIRE(here != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  mappings[mapping_count++] = (Mapping){address, nbytes, (int)handle};
  handles[handle].mappings++;
  return leave(CUDA_SUCCESS);
}

static size_t covered(uintptr_t address, size_t nbytes) {  // by whole mappings
  size_t sum = 0;
  for (int i = 0; i < mapping_count; i++)
    if (within(mappings[i].address, mappings[i].nbytes, address, nbytes)) sum += mappings[i].nbytes;
  return sum;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t nbytes, const CUmemAccessDesc *access, size_t number) {
  ENTER(1);
  REQUIRE(number == 1 && access->location.type == CU_MEM_LOCATION_TYPE_DEVICE && access->location.id == 0 &&
              access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
          CUDA_ERROR_INVALID_VALUE);
  REQUIRE(nbytes && covered(address, nbytes) == nbytes, CUDA_ERROR_INVALID_VALUE);
  int failed = mprotect((void *)address, nbytes, PROT_READ | PROT_WRITE);
  return leave(failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
}

static int is_read(uintptr_t address, size_t nbytes) {
  for (int i = 0; i < launch_count; i++)
    for (int j = launches[i].first; !launches[i].done && j < launches[i].first + launches[i].count; j++)
      if (meet(reads[j].address, reads[j].nbytes, address, nbytes)) return 1;
  return 0;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t nbytes) {
  ENTER(1);
  REQUIRE(nbytes && covered(address, nbytes) == nbytes, CUDA_ERROR_INVALID_VALUE);
  for (int i = mapping_count - 1; i >= 0; i--) {
    if (!within(mappings[i].address, mappings[i].nbytes, address, nbytes)) continue;
    int handle = mappings[i].handle;
    mappings[i] = mappings[--mapping_count];
    handles[handle].mappings--;
    forget(handle);
  }
  nothing_at(address, nbytes);
  dead |= is_read(address, nbytes);  // the kernel dies later; this call has done its work
  return leave(CUDA_SUCCESS);
}

// --- events

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags) {
  ENTER(1);
  (void)flags;
  int i = 1;
  while (i < EVENTS && events[i].used) i++;
  REQUIRE(i < EVENTS, CUDA_ERROR_OUT_OF_MEMORY);
  events[i] = (Event){1, 0};
  *event = (CUevent)(uintptr_t)i;
  return leave(CUDA_SUCCESS);
}

static int known(CUevent event) { return (uintptr_t)event < EVENTS && events[(uintptr_t)event].used; }

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  ENTER(1);
  REQUIRE(known(event) && !stream, CUDA_ERROR_INVALID_HANDLE);
  events[(uintptr_t)event].behind = launch_count;
  return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  ENTER(1);
  REQUIRE(known(event), CUDA_ERROR_INVALID_HANDLE);
  for (int i = 0, behind = events[(uintptr_t)event].behind; i < behind; i++) {
    while (launches[i].held && !launches[i].done) pthread_cond_wait(&finished, &lock);
    launches[i].done = 1;
  }
  return leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  ENTER(1);
  REQUIRE(known(event), CUDA_ERROR_INVALID_HANDLE);
  events[(uintptr_t)event].used = 0;
  return leave(CUDA_SUCCESS);
}

// --- how the bindings find the calls; whatever is not here is not there

#define CALL(name) {#name, name}
static const struct { const char *name; void *call; } table[] = {
    CALL(cuInit), CALL(cuDeviceGet), CALL(cuDeviceGetAttribute), CALL(cuDevicePrimaryCtxRetain),
    CALL(cuDevicePrimaryCtxRelease), CALL(cuCtxSetCurrent), CALL(cuMemGetInfo), CALL(cuMemGetAllocationGranularity),
    CALL(cuMemAddressReserve), CALL(cuMemAddressFree), CALL(cuMemCreate), CALL(cuMemRelease), CALL(cuMemMap),
    CALL(cuMemSetAccess), CALL(cuMemUnmap), CALL(cuEventCreate), CALL(cuEventRecord), CALL(cuEventSynchronize),
    CALL(cuEventDestroy),
};

CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **call, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status) {
  (void)version, (void)flags;
  *call = NULL;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strcmp(table[i].name, name)) *call = table[i].call;
  if (status) *status = *call ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *call ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
