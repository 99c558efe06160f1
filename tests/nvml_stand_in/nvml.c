/* A stand-in for libnvidia-ml.so.1. What it answers stands in the file that $NVML_STAND_IN names, read anew at every
 * call, one "key words" a line, keys of a GPU with its number before them:
 *
 *   gpus 2                                  how many there are; no file: no driver
 *   fail nvmlDeviceSetGpuLockedClocks 4     this call returns this error
 *   hang nvmlDeviceGetPowerUsage            this call does not return while the line stands
 *   0.sm 1980 1980 1200                     answers of one call after the other, the last for ever; "locked": what was
 *                                           locked by this process, else 1980
 *   0.reasons 0x4    0.pids 17 18    0.mig 1    0.base 1095    0.max 1980    0.temperature 45    0.power_mw 300000
 *
 * Every change asked for is appended to $NVML_STAND_IN.changes. GPU n has the UUID GPU-n; MIG-i is an instance of 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID, UNSUPPORTED, PERMISSION, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9 };
enum { GPUS = 8, LINE = 4096, INSTANCE = GPUS };

typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } process_t;
typedef unsigned int device_t; /* a pointer in NVML, opaque; here number + 1 in its place */

static unsigned int locked_mhz[GPUS];
static unsigned int asked_sm[GPUS];

/* The words after a key, or NULL. */
static const char *words_of(const char *key) {
  static __thread char line[LINE];
  const char *path = getenv("NVML_STAND_IN");
  FILE *file = path ? fopen(path, "r") : NULL;
  if (!file) return NULL;
  const size_t length = strlen(key);
  const char *found = NULL;
  while (!found && fgets(line, LINE, file))
    if (!strncmp(line, key, length) && (line[length] == ' ' || line[length] == '\n')) found = line + length;
  fclose(file);
  return found;
}

static long number_of(const char *key, long otherwise) {
  const char *words = words_of(key);
  return words ? strtol(words, NULL, 0) : otherwise;
}

static const char *gpu_words(device_t gpu, const char *key) {
  char name[64];
  snprintf(name, sizeof name, "%u.%s", gpu, key);
  return words_of(name);
}

static long gpu_number(device_t gpu, const char *key, long otherwise) {
  const char *words = gpu_words(gpu, key);
  return words ? strtol(words, NULL, 0) : otherwise;
}

/* What every call does first. */
static int enter(const char *function) {
  char key[128];
  if (!words_of("gpus")) return NO_DRIVER;
  snprintf(key, sizeof key, "hang %s", function);
  while (words_of(key)) usleep(10000);
  snprintf(key, sizeof key, "fail %s", function);
  return (int)number_of(key, SUCCESS);
}
#define ENTER() do { const int error = enter(__func__); if (error) return error; } while (0)

static device_t number(const void *device) { return (device_t)((size_t)device - 1); }

static void note(const char *what, device_t gpu, unsigned int mhz) {
  char path[LINE];
  snprintf(path, sizeof path, "%s.changes", getenv("NVML_STAND_IN"));
  FILE *file = fopen(path, "a");
  if (!file) return;
  fprintf(file, "%s %u %u\n", what, gpu, mhz);
  fclose(file);
}

static int give(unsigned int *answer, long value) {
  if (value < 0) return UNSUPPORTED;
  *answer = (unsigned int)value;
  return SUCCESS;
}

const char *nvmlErrorString(int error) {
  return error == PERMISSION ? "Insufficient Permissions" : error == UNSUPPORTED ? "Not Supported" : "Scripted Error";
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; ENTER(); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  ENTER();
  snprintf(version, length, "stand-in 1.0");
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) { ENTER(); return give(count, number_of("gpus", 0)); }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
  ENTER();
  if ((long)index >= number_of("gpus", 0)) return INVALID;
  *device = (void *)(size_t)(index + 1);
  return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  ENTER();
  if (!strcmp(uuid, "MIG-i") && gpu_number(0, "mig", 0)) {
    *device = (void *)(size_t)(INSTANCE + 1);
    return SUCCESS;
  }
  for (long n = 0; n < number_of("gpus", 0); ++n) {
    char name[32];
    snprintf(name, sizeof name, "GPU-%ld", n);
    if (strcmp(uuid, name)) continue;
    *device = (void *)(size_t)(n + 1);
    return SUCCESS;
  }
  return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) {
  ENTER();
  if (number(instance) != INSTANCE) return INVALID;
  *device = (void *)(size_t)1;
  return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
  ENTER();
  snprintf(uuid, length, "GPU-%u", number(device));
  return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
  ENTER();
  const long mig = gpu_number(number(device), "mig", -1);
  give(pending, mig);
  return give(current, mig);
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *mhz) {
  ENTER();
  const device_t gpu = number(device);
  if (type != 1) return give(mhz, 2619); /* memory */
  const char *words = gpu_words(gpu, "sm");
  if (!words) return give(mhz, 1980);
  if (strstr(words, "locked")) return give(mhz, locked_mhz[gpu] ? locked_mhz[gpu] : 1980);
  long value = -1;
  char *end;
  for (unsigned int n = 0; n <= asked_sm[gpu]; ++n, words = end) {
    const long next = strtol(words, &end, 0);
    if (end == words) break;
    value = next;
  }
  ++asked_sm[gpu];
  return give(mhz, value);
}

int nvmlDeviceGetClock(void *device, int type, int id, unsigned int *mhz) {
  ENTER();
  return type == 1 && id == 2 ? give(mhz, gpu_number(number(device), "base", -1)) : INVALID;
}

int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned int *mhz) {
  (void)type;
  ENTER();
  return give(mhz, gpu_number(number(device), "max", 1980));
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius) {
  (void)sensor;
  ENTER();
  return give(celsius, gpu_number(number(device), "temperature", 45));
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
  ENTER();
  return give(milliwatts, gpu_number(number(device), "power_mw", 300000));
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
  ENTER();
  const char *words = gpu_words(number(device), "reasons");
  *reasons = words ? strtoull(words, NULL, 0) : 0;
  return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
  ENTER();
  return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *processes) {
  ENTER();
  const char *words = gpu_words(number(device), "pids");
  unsigned int found = 0;
  char *end;
  for (; words; words = end, ++found) {
    const long pid = strtol(words, &end, 0);
    if (end == words) break;
    if (processes && found < *count) processes[found] = (process_t){(unsigned int)pid, 1 << 20, ~0u, ~0u};
  }
  const int fits = found <= *count;
  *count = found;
  return fits && (processes || !found) ? SUCCESS : TOO_SMALL;
}

int nvmlDeviceSetGpuLockedClocks(void *device, unsigned int lowest, unsigned int highest) {
  note("lock", number(device), lowest);
  ENTER();
  if (lowest != highest) return INVALID;
  locked_mhz[number(device)] = lowest;
  return SUCCESS;
}

int nvmlDeviceResetGpuLockedClocks(void *device) {
  note("reset", number(device), 0);
  ENTER();
  locked_mhz[number(device)] = 0;
  return SUCCESS;
}
