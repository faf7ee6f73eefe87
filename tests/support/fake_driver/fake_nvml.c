/* A stand-in for libnvidia-ml.so.1: answers from the file "scenario" beside this library.
 *
 * The file has one "key=value" a line and is read at each question, so that a machine may change while a
 * program looks at it. Keys: driver, cuda, nvml, count, init, gpu.N.<fact>, gpu.N.mig.M.<fact>, and
 *   error.<function>=CODE          the function fails
 *   gpu.N.error=CODE               every question about that GPU fails
 *   gpu.N.error.<function>=CODE    that one fails
 *   gpu.N.hang=<function>|*        that one never returns ("hang" for functions of the machine)
 *   gpu.N.crash=<function>|*       that one segfaults
 *   p2p.I.J=0  path.I.J=30         links between two GPUs
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MAX_GPUS = 64, MAX_SLICES = 8 };

typedef struct { int gpu, slice; } handle_t; /* slice is -1 for the whole GPU */
typedef handle_t *device_t;
static handle_t handles[MAX_GPUS][MAX_SLICES + 1];

static char value[1 << 16]; /* of the last key found */

static FILE *open_scenario(void) {
    char path[PATH_MAX];
    Dl_info info;
    if (!dladdr((void *)open_scenario, &info)) return NULL;
    snprintf(path, sizeof path, "%s", info.dli_fname);
    char *folder = dirname(path);
    char file[PATH_MAX + 16];
    snprintf(file, sizeof file, "%s/scenario", folder);
    return fopen(file, "r");
}

static const char *find(const char *key) {
    static char line[1 << 16];
    FILE *file = open_scenario();
    size_t length = strlen(key);
    int found = 0;
    if (!file) return NULL;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, sizeof value, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found ? value : NULL;
}

static const char *fact(device_t device, const char *name) {
    char key[256];
    if (device->slice < 0) snprintf(key, sizeof key, "gpu.%d.%s", device->gpu, name);
    else snprintf(key, sizeof key, "gpu.%d.mig.%d.%s", device->gpu, device->slice, name);
    return find(key);
}

static long long number(const char *text, long long otherwise) { return text ? atoll(text) : otherwise; }

static int named(const char *text, const char *function) {
    return text && (strcmp(text, "*") == 0 || strcmp(text, function) == 0);
}

static void misbehave(const char *hang, const char *crash) {
    if (hang) for (;;) pause();
    if (crash) raise(SIGSEGV);
}

static int check_machine(const char *function) {
    char key[256];
    if (named(find("hang"), function)) misbehave("", NULL);
    if (named(find("crash"), function)) misbehave(NULL, "");
    snprintf(key, sizeof key, "error.%s", function);
    return (int)number(find(key), OK);
}

static int check(device_t device, const char *function) {
    char name[256];
    if (named(fact(device, "hang"), function)) misbehave("", NULL);
    if (named(fact(device, "crash"), function)) misbehave(NULL, "");
    snprintf(name, sizeof name, "error.%s", function);
    const char *code = fact(device, name);
    return (int)number(code ? code : fact(device, "error"), OK);
}

#define MACHINE() do { int rc_ = check_machine(__func__); if (rc_) return rc_; } while (0)
#define DEVICE() do { int rc_ = check(device, __func__); if (rc_) return rc_; } while (0)

static int copy_text(const char *text, char *out, unsigned size) {
    if (!text) return NOT_SUPPORTED;
    snprintf(out, size, "%s", text);
    return OK;
}

#define TEXT_FACT(function, key) \
    int function(device_t device, char *out, unsigned size) { \
        DEVICE(); return copy_text(fact(device, key), out, size); }
#define NUMBER_FACT(function, type, key) \
    int function(device_t device, type *out) { \
        DEVICE(); const char *text = fact(device, key); if (!text) return NOT_SUPPORTED; \
        *out = (type)atoll(text); return OK; }
#define PAIR_FACT(function, first_key, second_key) \
    int function(device_t device, unsigned *first, unsigned *second) { \
        DEVICE(); const char *text = fact(device, first_key); if (!text) return NOT_SUPPORTED; \
        *first = (unsigned)atoll(text); *second = (unsigned)number(fact(device, second_key), *first); return OK; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; MACHINE(); return (int)number(find("init"), OK); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { MACHINE(); return OK; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { MACHINE(); return copy_text(find("driver"), out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { MACHINE(); return copy_text(find("nvml"), out, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { MACHINE(); *out = (int)number(find("cuda"), 0); return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { MACHINE(); *out = (unsigned)number(find("count"), 0); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
    MACHINE();
    if (index >= (unsigned)number(find("count"), 0) || index >= MAX_GPUS) return INVALID_ARGUMENT;
    device_t device = &handles[index][MAX_SLICES];
    *device = (handle_t){(int)index, -1};
    DEVICE();
    *out = device;
    return OK;
}

TEXT_FACT(nvmlDeviceGetUUID, "uuid")
TEXT_FACT(nvmlDeviceGetName, "name")
NUMBER_FACT(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER_FACT(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
NUMBER_FACT(nvmlDeviceGetComputeMode, unsigned, "compute_mode")
NUMBER_FACT(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle")
NUMBER_FACT(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle_old")
NUMBER_FACT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation")
NUMBER_FACT(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
NUMBER_FACT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_max_generation")
NUMBER_FACT(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_max_width")
NUMBER_FACT(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pages_pending")
PAIR_FACT(nvmlDeviceGetMigMode, "mig_current", "mig_next")
PAIR_FACT(nvmlDeviceGetEccMode, "ecc", "ecc_next")

int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
    DEVICE();
    const char *text = fact(device, "capability");
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

static int copy_pci(const char *bus, pci_t *out) {
    memset(out, 0, sizeof *out);
    if (!bus) return NOT_SUPPORTED;
    sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", bus);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *out) { DEVICE(); return copy_pci(fact(device, "bus"), out); }

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;

int nvmlDeviceGetMemoryInfo(device_t device, memory_t *out) {
    DEVICE();
    out->total = (unsigned long long)number(fact(device, "memory_total"), 0);
    out->used = (unsigned long long)number(fact(device, "memory_used"), 0);
    out->used += (unsigned long long)number(fact(device, "memory_reserved"), 0);
    out->free = out->total - out->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *out) {
    DEVICE();
    out->total = (unsigned long long)number(fact(device, "memory_total"), 0);
    out->used = (unsigned long long)number(fact(device, "memory_used"), 0);
    out->reserved = (unsigned long long)number(fact(device, "memory_reserved"), 0);
    out->free = out->total - out->used - out->reserved;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *out) {
    DEVICE();
    *out = (unsigned)number(fact(device, "mig_max"), 0);
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *out) {
    DEVICE();
    if (index >= MAX_SLICES) return INVALID_ARGUMENT;
    device_t slice = &handles[device->gpu][index];
    *slice = (handle_t){device->gpu, (int)index};
    if (!fact(slice, "uuid")) return NOT_FOUND;
    *out = slice;
    return OK;
}

int nvmlDeviceGetTotalEccErrors(device_t device, int kind, int counter, unsigned long long *out) {
    DEVICE();
    if (counter != 0) return INVALID_ARGUMENT; /* since the driver was loaded */
    *out = (unsigned long long)number(fact(device, kind == 1 ? "ecc_uncorrected" : "ecc_corrected"), 0);
    return OK;
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    DEVICE();
    *corrected = 0;
    *uncorrected = (unsigned)number(fact(device, "remapped_rows"), 0);
    *pending = (unsigned)number(fact(device, "remap_pending"), 0);
    *failed = (unsigned)number(fact(device, "remap_failed"), 0);
    return OK;
}

int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *out) {
    DEVICE();
    (void)sensor;
    *out = (unsigned)number(fact(device, "temperature_c"), 30);
    return OK;
}

/* nvlink=AAAD...: A active, D down; nvlink_to=BUS,BUS,...: the far end of each */
int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *out) {
    DEVICE();
    const char *states = fact(device, "nvlink");
    if (!states || link >= strlen(states)) return INVALID_ARGUMENT;
    *out = states[link] == 'A';
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t device, unsigned link, pci_t *out) {
    DEVICE();
    const char *ends = fact(device, "nvlink_to");
    if (!ends) return NOT_SUPPORTED;
    char copy[4096], *rest = copy, *end = NULL;
    snprintf(copy, sizeof copy, "%s", ends);
    for (unsigned i = 0; i <= link; i++) end = strsep(&rest, ",");
    return copy_pci(end, out);
}

static int between(const char *what, device_t one, device_t other, int otherwise) {
    char key[64];
    int low = one->gpu < other->gpu ? one->gpu : other->gpu, high = one->gpu < other->gpu ? other->gpu : one->gpu;
    snprintf(key, sizeof key, "%s.%d.%d", what, low, high);
    const char *text = find(key);
    return (int)number(text ? text : find(what), otherwise);
}

int nvmlDeviceGetP2PStatus(device_t device, device_t other, int kind, int *out) {
    DEVICE();
    (void)kind;
    *out = between("p2p", device, other, 5); /* not supported */
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(device_t device, device_t other, int *out) {
    DEVICE();
    *out = between("path", device, other, 50); /* system */
    return OK;
}

/* processes=PID:BYTES,PID:BYTES */
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_t;

static int list_processes(const char *text, unsigned *count, process_t *out) {
    char copy[1 << 14], *rest = copy, *entry;
    unsigned found = 0, room = out ? *count : 0;
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    while ((entry = strsep(&rest, ",")) && *entry) {
        unsigned pid; unsigned long long memory;
        if (sscanf(entry, "%u:%llu", &pid, &memory) != 2) continue;
        if (found < room) out[found] = (process_t){pid, memory, 0xffffffff, 0xffffffff};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *out) {
    DEVICE();
    return list_processes(fact(device, "processes"), count, out);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *out) {
    DEVICE();
    return list_processes(fact(device, "mps_clients"), count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, process_t *out) {
    DEVICE();
    return list_processes(fact(device, "graphics"), count, out);
}

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    char key[64];
    MACHINE();
    snprintf(key, sizeof key, "process.%u", pid);
    return copy_text(find(key), out, size);
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case 9: return "Driver Not Loaded";
    case 12: return "NVML Shared Library Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "Error";
    }
}
