/* A stand-in for libnvidia-ml.so.1 with two GPUs, by the prototypes of the NVML API reference.

   GPU 0 draws 500 W and heats up, GPU 1 lacks its energy counter and temperature. The state moves
   on with each reading of the power and starts again with nvmlInit, so that a test knows every value. */
#include <stdlib.h>
#include <string.h>

typedef struct device { unsigned index; unsigned reads; } *nvmlDevice_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, LOST = 15, SM = 1, MEMORY = 2 };

static struct device devices[2] = {{0, 0}, {1, 0}};

static int lost(void) {
    const char *after = getenv("FAKE_NVML_LOST_AFTER");
    return after && devices[0].reads > (unsigned)atoi(after);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    devices[0].reads = devices[1].reads = 0;
    return getenv("FAKE_NVML_REFUSES") ? 9 : SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index > 1) return 2;
    *device = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned size) {
    strncpy(text, device->index ? "GPU-bbbb" : "GPU-aaaa", size);
    return SUCCESS;
}
int nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned size) {
    (void)device;
    strncpy(text, "NVIDIA Stand-in", size);
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = 700000;
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int kind, unsigned *mhz) {
    (void)device;
    *mhz = kind == SM ? 1980 : 2619;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    device->reads++;
    if (lost()) return LOST;
    *milliwatts = device->index ? 300250 : 500000;
    return SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    if (device->index) return NOT_SUPPORTED;
    if (lost()) return LOST;
    *millijoules = 5000000000ULL + 250000ULL * device->reads; /* beyond 32 bits; 250 J a reading */
    return SUCCESS;
}
int nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius) {
    if (device->index || sensor != 0) return NOT_SUPPORTED;
    if (lost()) return LOST;
    *celsius = 60 + device->reads;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    (void)device;
    if (lost()) return LOST;
    rates->gpu = 98;
    rates->memory = 41;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    (void)device;
    if (lost()) return LOST;
    memory->total = 80ULL << 30;
    memory->used = 60ULL << 30;
    memory->free = 20ULL << 30;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(nvmlDevice_t device, int kind, unsigned *mhz) {
    (void)device;
    if (lost()) return LOST;
    *mhz = kind == SM ? 1755 : kind == MEMORY ? 2619 : 1;
    return SUCCESS;
}
/* The name from before CUDA 12.2 alone, as an older driver has it. */
int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask) {
    if (lost()) return LOST;
    *mask = device->index ? 0x1 : 0x4 | 0x20;
    return SUCCESS;
}
