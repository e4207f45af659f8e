/* NVML calls that other monitors make and gpuconsole does not. All weak: where the tests' fake driver has a call, that one counts. */
#include <stddef.h>

#define WEAK __attribute__((weak))
enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
enum { MOST = 16 };

typedef struct Gpu Gpu;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned pid; unsigned long long memory; } ProcessV1;

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu);
int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *mw);
int nvmlDeviceGetName(Gpu *gpu, char *name, unsigned size);
int nvmlDeviceGetFanSpeed(Gpu *gpu, unsigned *pct);
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *found);
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *found);

/* --- the driver ---------------------------------------------------------------------------------------------------- */

static int text(char *to, unsigned size, const char *from) {
    for (unsigned i = 0; i < size; i++)
        if (!(to[i] = from[i])) return OK;
    return INSUFFICIENT_SIZE;
}

WEAK int nvmlInit(void) { return nvmlInit_v2(); }
WEAK int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
WEAK int nvmlDeviceGetHandleByIndex(unsigned index, Gpu **gpu) { return nvmlDeviceGetHandleByIndex_v2(index, gpu); }
WEAK int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return OK; }
WEAK int nvmlSystemGetNVMLVersion(char *version, unsigned size) { return text(version, size, "13.580.159.03"); }
WEAK int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) { (void)pid; return text(name, size, "sleep"); }

/* --- one GPU ------------------------------------------------------------------------------------------------------- */

WEAK int nvmlDeviceIsMigDeviceHandle(Gpu *gpu, unsigned *is_slice) { (void)gpu; *is_slice = 0; return OK; }
WEAK int nvmlDeviceGetPowerManagementLimit(Gpu *gpu, unsigned *mw) { return nvmlDeviceGetEnforcedPowerLimit(gpu, mw); }
WEAK int nvmlDeviceGetPerformanceState(Gpu *gpu, unsigned *state) { (void)gpu; *state = 0; return OK; }
WEAK int nvmlDeviceGetPowerState(Gpu *gpu, unsigned *state) { (void)gpu; *state = 0; return OK; }
WEAK int nvmlDeviceGetDisplayActive(Gpu *gpu, unsigned *active) { (void)gpu; *active = 0; return OK; }
WEAK int nvmlDeviceGetDisplayMode(Gpu *gpu, unsigned *mode) { (void)gpu; *mode = 0; return OK; }
WEAK int nvmlDeviceGetNumFans(Gpu *gpu, unsigned *count) { (void)gpu; *count = 1; return OK; }
WEAK int nvmlDeviceGetFanSpeed_v2(Gpu *gpu, unsigned fan, unsigned *pct) { return fan ? INVALID_ARGUMENT : nvmlDeviceGetFanSpeed(gpu, pct); }

WEAK int nvmlDeviceGetDriverModel(Gpu *gpu, unsigned *now, unsigned *next) { (void)gpu, (void)now, (void)next; return NOT_SUPPORTED; }
WEAK int nvmlDeviceGetDriverModel_v2(Gpu *gpu, unsigned *now, unsigned *next) { (void)gpu, (void)now, (void)next; return NOT_SUPPORTED; }
WEAK int nvmlDeviceGetConfComputeMemSizeInfo(Gpu *gpu, void *info) { (void)gpu, (void)info; return NOT_SUPPORTED; }

WEAK int nvmlDeviceGetTotalEccErrors(Gpu *gpu, unsigned kind, unsigned scope, unsigned long long *count) {
    (void)gpu, (void)kind, (void)scope;
    *count = 0;
    return OK;
}

WEAK int nvmlDeviceGetIndex(Gpu *gpu, unsigned *index) {
    unsigned count = 0;
    Gpu *other = NULL;
    nvmlDeviceGetCount_v2(&count);
    for (*index = 0; *index < count; ++*index)
        if (!nvmlDeviceGetHandleByIndex_v2(*index, &other) && other == gpu) return OK;
    return INVALID_ARGUMENT;
}

/* --- processes: older forms of the same calls ------------------------------------------------------------------------ */

typedef int (*Running)(Gpu *, unsigned *, Process *);

static int without_instances(Running running, Gpu *gpu, unsigned *count, ProcessV1 *found) {
    Process all[MOST];
    unsigned room = *count;
    *count = MOST;
    int code = running(gpu, count, all);
    if (code) return code;
    if (*count > room || (*count && !found)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) found[i] = (ProcessV1){ all[i].pid, all[i].memory };
    return OK;
}

WEAK int nvmlDeviceGetComputeRunningProcesses(Gpu *gpu, unsigned *count, ProcessV1 *found) {
    return without_instances(nvmlDeviceGetComputeRunningProcesses_v3, gpu, count, found);
}

WEAK int nvmlDeviceGetGraphicsRunningProcesses(Gpu *gpu, unsigned *count, ProcessV1 *found) {
    return without_instances(nvmlDeviceGetGraphicsRunningProcesses_v3, gpu, count, found);
}

WEAK int nvmlDeviceGetComputeRunningProcesses_v2(Gpu *gpu, unsigned *count, Process *found) {
    return nvmlDeviceGetComputeRunningProcesses_v3(gpu, count, found);
}

WEAK int nvmlDeviceGetGraphicsRunningProcesses_v2(Gpu *gpu, unsigned *count, Process *found) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(gpu, count, found);
}

WEAK int nvmlDeviceGetMPSComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *found) {
    (void)gpu, (void)found;
    *count = 0;
    return OK;
}

WEAK int nvmlDeviceGetMPSComputeRunningProcesses_v2(Gpu *gpu, unsigned *count, Process *found) {
    return nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu, count, found);
}

WEAK int nvmlDeviceGetMPSComputeRunningProcesses(Gpu *gpu, unsigned *count, ProcessV1 *found) {
    (void)gpu, (void)found;
    *count = 0;
    return OK;
}
