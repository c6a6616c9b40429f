// The state of libcuda.c, its faults, and what a test sets and asks: standin_*.

#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HANDLES = 1 << 14, MAPPINGS = 1 << 14, RANGES = 1 << 10, EVENTS = 1 << 6, LAUNCHES = 1 << 14, READS = 1 << 16 };

typedef struct { size_t nbytes, at; int used, released, mappings; } Handle;
typedef struct { uintptr_t address; size_t nbytes; int handle; } Mapping;
typedef struct { uintptr_t address; size_t nbytes; } Range;
typedef struct { int used, behind; } Event;             // behind: launches that came before it
typedef struct { int first, count, held, done; } Launch; // of `reads`

static Handle handles[HANDLES];
static Mapping mappings[MAPPINGS];
static Range spaces[RANGES], reads[READS];
static Event events[EVENTS];
static Launch launches[LAUNCHES];
static int handle_count, mapping_count, space_count, launch_count, read_count, contexts, dead, memory = -1;
static size_t granularity = 2 << 20, capacity = 64 << 20, used, top;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static __thread CUcontext current;

// --- faults and counts

static struct { const char *name; int made; } calls[64];
static char failing[64];
static int fail_at, fail_lasts, fail_with;

static int same(const char *function, const char *name) {  // cuda.h calls some functions name_v2
  size_t length = strlen(name);
  return !strncmp(function, name, length) && (!function[length] || !strcmp(function + length, "_v2"));
}

static CUresult count(const char *name) {
  int i = 0;
  while (calls[i].name && strcmp(calls[i].name, name)) i++;
  calls[i].name = name;
  int made = ++calls[i].made;
  int fails = same(name, failing) && (made == fail_at || (fail_lasts && fail_at > 0 && made > fail_at));
  return fails ? fail_with : CUDA_SUCCESS;
}

static CUresult enter(const char *name, int needs_context) {
  pthread_mutex_lock(&lock);
  CUresult result = count(name);
  if (result) return result;
  if (dead) return CUDA_ERROR_ILLEGAL_ADDRESS;
  return needs_context && !current ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult leave(CUresult result) {
  pthread_mutex_unlock(&lock);
  return result;
}

#define ENTER(context) \
  CUresult refused = enter(__func__, context); \
  if (refused) return leave(refused)
#define REQUIRE(good, error) \
  if (!(good)) return leave(error)

// --- what a test sets and asks

void standin_reset(size_t memory_bytes, size_t page_bytes) {
  if (memory >= 0) close(memory);
  memory = memfd_create("libcuda", MFD_CLOEXEC);
  if (ftruncate(memory, (off_t)1 << 40)) memory = -1;
  for (int i = 0; i < space_count; i++) munmap((void *)spaces[i].address, spaces[i].nbytes);
  memset(handles, 0, sizeof handles);
  memset(events, 0, sizeof events);
  memset(calls, 0, sizeof calls);
  handle_count = mapping_count = space_count = launch_count = read_count = contexts = dead = fail_at = 0;
  used = top = 0;
  capacity = memory_bytes, granularity = page_bytes, current = NULL;
}

void standin_fail(const char *name, int nth, int lasting, int error) {
  memset(calls, 0, sizeof calls);
  strncpy(failing, name, sizeof failing - 1);
  fail_at = nth, fail_lasts = lasting, fail_with = error;
}

int standin_calls(const char *name) {
  for (int i = 0; calls[i].name; i++)
    if (same(calls[i].name, name)) return calls[i].made;
  return 0;
}

int standin_launch(const uint64_t *ranges, int number, int held) {  // ranges: address, bytes, address, bytes ...
  pthread_mutex_lock(&lock);
  if (launch_count == LAUNCHES || read_count + number > READS) {
    pthread_mutex_unlock(&lock);
    return -1;
  }
  launches[launch_count] = (Launch){read_count, number, held, 0};
  for (int i = 0; i < number; i++) reads[read_count++] = (Range){ranges[2 * i], ranges[2 * i + 1]};
  int launch = launch_count++;
  pthread_mutex_unlock(&lock);
  return launch;
}

void standin_finish(int launch) {
  pthread_mutex_lock(&lock);
  launches[launch].done = 1;
  pthread_cond_broadcast(&finished);
  pthread_mutex_unlock(&lock);
}

void standin_live(int counts[5]) {
  int held = 0, pending = 0;
  for (int i = 1; i <= handle_count; i++) held += handles[i].used;
  for (int i = 1; i < EVENTS; i++) pending += events[i].used;
  memcpy(counts, (int[]){held, mapping_count, space_count, pending, contexts}, 5 * sizeof(int));
}

int standin_dead(void) { return dead; }
