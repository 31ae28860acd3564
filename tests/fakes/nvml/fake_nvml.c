/*
 * A fake NVIDIA driver library (libnvidia-ml.so.1) for the tests.
 *
 * It answers the calls that the real pynvml makes, from a script that a test
 * writes and rewrites while the program under test runs. README.md, next to
 * this file, describes the script. The struct layouts and signatures follow
 * what pynvml declares.
 *
 * How it hangs together, from top to bottom of this file:
 *   1. the structs that cross the boundary;
 *   2. Config: everything that the script says right now;
 *   3. histories: what power, utilisation and GPM levels were over time, kept
 *      when the script is read again;
 *   4. the script: reading it, its lines, and when they take effect;
 *   5. enter/judge/leave: what every call does first and last;
 *   6. the calls.
 *
 * One mutex guards all state. It is never held while a call sleeps.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef unsigned Ret;

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    NO_MEMORY = 20,
    VERSION_MISMATCH = 25,
};

enum {
    MAX_GPUS = 16,
    MAX_MIGS = 7,
    MAX_LINKS = 18,
    MAX_SETS = 64,
    MAX_FIELDS = 256,
    MAX_PROCESSES = 64,
    MAX_XIDS = 256,
    MAX_QUEUE = 256,
    MAX_ALLOCATED = 256, /* event sets, and GPM samples: nobody needs as many */
    GPM_IDS = 477,
    GPM_FIRST_UNSUPPORTED = 212,
    GPM_STRUCT_VERSION = 1, /* the GPM structs carry a bare 1, without a size */
};

#define ANY_ID 0xFFFFFFFFu
#define EVENT_XID 8ull
#define ENERGY_AT_START_MJ 1e9
#define SCRIPT_CHECK_SECONDS 0.010
#define VERSION_OF(type, number) ((unsigned)sizeof(type) | (unsigned)(number) << 24)

/* ------------------------------------------------------------------------
 * 1. What crosses the boundary
 * ------------------------------------------------------------------------ */

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef struct {
    unsigned version;
    int margin;
} MarginTemperature;

typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

typedef struct {
    unsigned pid;
    unsigned long long timestamp;
    unsigned sm, mem, enc, dec;
} ProcessSample;

typedef union {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
    int si;
    unsigned short us;
} Value;

typedef struct {
    unsigned long long timestamp;
    Value value;
} Sample;

enum { TYPE_DOUBLE = 0, TYPE_UINT = 1, TYPE_ULL = 3 };

typedef struct {
    uint32_t id, scope;
    int64_t timestamp, latency;
    unsigned type;
    Ret result;
    Value value;
} FieldValue;

typedef struct {
    unsigned version;
    uint8_t cluster[16];
    Ret status;
    uint32_t clique;
    unsigned state;
    uint32_t health_mask;
    uint8_t summary; /* since version 3 */
} Fabric;

/* The opaque handle. mig is -1 for a whole GPU. */
typedef struct Device {
    int gpu, mig;
} Device;

typedef struct {
    int supported;
    unsigned count;
    struct {
        unsigned code, state;
        char info[128], product[128];
        unsigned enabled;
        uint32_t expiry[4];
    } features[3];
} GridFeatures;

typedef struct {
    Device *device;
    unsigned id, profile, start, size;
} GpuInstanceInfo;

typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

/* nvml.h of R615: nvmlGpuOperationalEventConfig_v1_t and nvmlEventSetWait_v3_t, which bear no version */
typedef struct {
    char uuid[96];
    unsigned min_log_level, min_severity;
} OperationalConfig;

typedef struct {
    unsigned timeout_ms, data_type;
    char uuid[96], module[16];
    unsigned long long type, data, group_cursor, instance, microseconds, trace;
    unsigned gpu_instance, compute_instance, severity, category, code, scope, originator;
    unsigned module_instance, chiplet, log_level, attributes, group_cper_size, group_attributes;
    unsigned char group_size, group_index;
} WaitV3;

typedef struct {
    unsigned index, type, source_type, size;
    unsigned short version;
} ContextInfo;

typedef struct {
    unsigned index, xid;
} LegacyXid;

typedef struct {
    unsigned max, high, partial, low, none;
} RemapHistogram;

typedef struct {
    unsigned asked, allowed, overridden, status, limit;
} AdaptiveTgp;

typedef struct {
    unsigned version, performance[8], requested[8], enforced[8];
} PowerProfiles;

typedef struct {
    unsigned version;
    unsigned long long counts[11];
    unsigned exceeded;
} SramStatus;

typedef struct {
    unsigned version, flag;
} Unrepairable;

typedef struct {
    unsigned environment, feature, devtools;
} ConfComputeState;

_Static_assert(sizeof(SramStatus) == 0x68, "pynvml: nvmlEccSramErrorStatus_v1");
_Static_assert(sizeof(MemoryV2) == 0x28, "pynvml: nvmlMemory_v2");
_Static_assert(sizeof(MarginTemperature) == 0x8, "pynvml: nvmlMarginTemperature_v1");
_Static_assert(sizeof(GridFeatures) == 860, "pynvml: c_nvmlGridLicensableFeatures_v4_t");
enum { FABRIC_V2 = 0x24 };
_Static_assert(sizeof(Fabric) == 0x28, "pynvml: nvmlGpuFabricInfo_v3");
_Static_assert(offsetof(Fabric, summary) == FABRIC_V2, "pynvml: nvmlGpuFabricInfo_v2");

/* ------------------------------------------------------------------------
 * 2. Config: what the script says right now
 * ------------------------------------------------------------------------ */

/* Every function that `fail` and `hang` may name, without _vN. */
#define FUNCTIONS(X) \
    X(nvmlShutdown) X(nvmlDeviceGetCount) X(nvmlDeviceGetHandleByIndex) X(nvmlDeviceGetName) \
    X(nvmlDeviceGetUUID) X(nvmlDeviceGetPciInfo) X(nvmlDeviceGetSerial) X(nvmlDeviceGetMinorNumber) \
    X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetVbiosVersion) X(nvmlDeviceGetMemoryBusWidth) \
    X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetTemperature) \
    X(nvmlDeviceGetMarginTemperature) X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetEnforcedPowerLimit) \
    X(nvmlDeviceGetPowerManagementDefaultLimit) X(nvmlDeviceGetCurrentClocksEventReasons) \
    X(nvmlDeviceGetPowerManagementLimit) X(nvmlDeviceGetPowerManagementLimitConstraints) \
    X(nvmlDeviceGetTemperatureThreshold) X(nvmlDeviceGetEncoderUtilization) \
    X(nvmlDeviceGetDecoderUtilization) X(nvmlDeviceGetGridLicensableFeatures) X(nvmlDeviceValidateInforom) X(nvmlSystemGetDriverVersion) \
    X(nvmlSystemGetCudaDriverVersion) X(nvmlDeviceGetGspFirmwareVersion) X(nvmlDeviceGetInforomImageVersion) \
    X(nvmlDeviceGetCurrentClocksThrottleReasons) X(nvmlDeviceGetTotalEnergyConsumption) \
    X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetRemappedRows) X(nvmlDeviceGetPersistenceMode) \
    X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetRowRemapperHistogram) \
    X(nvmlDeviceGetSramEccErrorStatus) X(nvmlDeviceGetVirtualizationMode) \
    X(nvmlSystemGetConfComputeState) X(nvmlDeviceGetP2PStatus) \
    X(nvmlDeviceGetUnrepairableMemoryFlag) X(nvmlDeviceGetAdaptiveTgpModeInfo) \
    X(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles) \
    X(nvmlDeviceGetCurrPcieLinkGeneration) X(nvmlDeviceGetCurrPcieLinkWidth) \
    X(nvmlDeviceGetMaxPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkWidth) X(nvmlDeviceGetPcieReplayCounter) \
    X(nvmlDeviceGetGpuFabricInfoV) X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) \
    X(nvmlDeviceGetMigDeviceHandleByIndex) X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetGpuInstanceById) \
    X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetGraphicsRunningProcesses) \
    X(nvmlDeviceGetMPSComputeRunningProcesses) X(nvmlDeviceGetProcessUtilization) \
    X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetSamples) X(nvmlGpmSampleAlloc) X(nvmlGpmSampleGet) \
    X(nvmlGpmMigSampleGet) X(nvmlGpmMetricsGet) X(nvmlGpmQueryDeviceSupport) X(nvmlEventSetCreate) \
    X(nvmlDeviceRegisterEvents) X(nvmlEventSetWait) X(nvmlEventSetRegisterGpuOperationalEvents) \
    X(nvmlEventSetGetContextCount) X(nvmlEventSetGetContextInfo) \
    X(nvmlEventSetGetGpuOperationalEventContextLegacyXid)

typedef enum {
#define X(name) F_##name,
    FUNCTIONS(X)
#undef X
    FUNCTION_COUNT
} Function;

static const char *const function_names[] = {
#define X(name) #name,
    FUNCTIONS(X)
#undef X
};

/* A constant, or a ramp: base + rate * seconds since the script was read. */
typedef struct {
    double base, rate;
} Number;

/* Every reading that `set` may name, with an H200's value. NAN: follows from
 * something else (see derived_reading). */
static const struct {
    const char *name;
    double value;
} readings[] = {
    {"MinorNumber", NAN},
    {"PowerUsage", NAN},
    {"TotalEnergyConsumption", NAN},
    {"UtilizationRates.gpu", NAN},
    {"UtilizationRates.memory", NAN},
    {"CurrentClocksThrottleReasons", NAN},
    {"MemoryInfo.total", NAN},
    {"MemoryInfo.reserved", NAN},
    {"MemoryInfo.used", 0},
    {"CudaComputeCapability.major", 9},
    {"CudaComputeCapability.minor", 0},
    {"MemoryBusWidth", 6144},
    {"ClockInfo.sm", 345},
    {"ClockInfo.mem", 3201},
    {"MaxClockInfo.sm", 1980},
    {"MaxClockInfo.mem", 3201},
    {"Temperature", 36},
    {"MarginTemperature", 47},
    {"EnforcedPowerLimit", 700000},
    {"PowerManagementDefaultLimit", 700000},
    {"PowerManagementLimit", 700000},
    {"PowerManagementLimitConstraints.min", 200000},
    {"PowerManagementLimitConstraints.max", 700000},
    {"TemperatureThreshold.shutdown", 95},
    {"TemperatureThreshold.slowdown", 89},
    {"TemperatureThreshold.mem_max", 95},
    {"TemperatureThreshold.gpu_max", 87},
    {"EncoderUtilization.percent", 0},
    {"EncoderUtilization.period", 100000},
    {"DecoderUtilization.percent", 0},
    {"DecoderUtilization.period", 100000},
    {"CurrentClocksEventReasons", 1},
    {"PerformanceState", 0},
    {"TotalEccErrors.corrected_volatile", 0},
    {"TotalEccErrors.uncorrected_volatile", 0},
    {"TotalEccErrors.corrected_aggregate", 0},
    {"TotalEccErrors.uncorrected_aggregate", 0},
    {"RemappedRows.corrected", 0},
    {"RemappedRows.uncorrected", 0},
    {"RemappedRows.pending", 0},
    {"RemappedRows.failed", 0},
    {"PersistenceMode", 1},
    {"CurrPcieLinkGeneration", 5},
    {"CurrPcieLinkWidth", 16},
    {"MaxPcieLinkGeneration", 5},
    {"MaxPcieLinkWidth", 16},
    {"PcieReplayCounter", 0},
    {"GpuFabricInfoV.state", 3},
    {"GpuFabricInfoV.health_mask", 426},
    {"GpuFabricInfoV.health_summary", 0},
    {"GpuFabricInfoV.status", 0},
    {"GpuFabricInfoV.cluster", 0},
    {"GpuFabricInfoV.clique", 0},
    {"GpuFabricInfoV.version", 3},
    {"MaxMigDeviceCount", 7},
    {"GridLicensableFeatures.supported", 0},
    {"GridLicensableFeatures.state", 0},
    {"RowRemapperHistogram.max", 3072},
    {"RowRemapperHistogram.high", 0},
    {"RowRemapperHistogram.partial", 0},
    {"RowRemapperHistogram.low", 0},
    {"RowRemapperHistogram.none", 0},
    {"SramEccErrorStatus.exceeded", 0},
    {"UnrepairableMemoryFlag", 0},
    {"AdaptiveTgpModeInfo", 0},
    {"WorkloadPowerProfileGetCurrentProfiles", 0},
    {"VirtualizationMode", 0},
    {"ConfComputeState.feature", 0},
    {"ConfComputeState.devtools", 0},
    {"P2PStatus", 0},
    {"GpuInstanceInfo.profile", 19},
    {"GpuInstanceInfo.start", NAN},
};
enum { READING_COUNT = sizeof readings / sizeof readings[0] };

typedef struct {
    int reading;
    Number value;
} Override;

typedef struct {
    unsigned id, scope;
    bool any_scope, is_double, left;
    Ret fail;
    Number value;
} Field;

typedef enum { COMPUTE, GRAPHICS, MPS } ProcessKind;

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    ProcessKind kind;
} Process;

typedef struct {
    double level;
    Ret fail;
    bool listed, unknown;
} GpmLevel;

/* high for high_seconds, low for low_seconds, and so on; phase 0 at its start */
typedef struct {
    double high, low, high_seconds, low_seconds;
} Wave;

/* What the script says about one GPU or one MIG instance. */
typedef struct {
    char uuid[96], name[96], serial[30], vbios[32], bus_id[32];
    Override overrides[MAX_SETS];
    int override_count;
    Field fields[MAX_FIELDS];
    int field_count;
    Process processes[MAX_PROCESSES];
    int process_count;
    GpmLevel gpm[GPM_IDS];
    bool gpm_support, lost;
    Wave power, util;
    int migs;
    Ret fail[FUNCTION_COUNT];
    double hang[FUNCTION_COUNT];
} Settings;

typedef struct {
    int gpu, mig;
    unsigned long long number, serial;
} Xid;

typedef struct {
    int gpu;
    unsigned long long serial;
    unsigned xid; /* 0: none */
    WaitV3 event;
} Operational;

typedef struct {
    int gpus;
    Ret init, system;
    double init_hang;
    Ret fail[FUNCTION_COUNT];
    Settings settings[MAX_GPUS][1 + MAX_MIGS]; /* [gpu][0] is the GPU itself */
    Xid xids[MAX_XIDS];
    int xid_count;
    Operational operational[MAX_XIDS];
    int operational_count;
} Config;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialised; /* nvmlInit minus nvmlShutdown */
static Config config;
static Device devices[MAX_GPUS][1 + MAX_MIGS];

static double monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double realtime(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static unsigned long long microseconds_now(void)
{
    return (unsigned long long)(realtime() * 1e6);
}

static Wave constant_wave(double level)
{
    return (Wave){level, level, 1, 1};
}

static void reset_settings(Settings *s, int gpu, int mig)
{
    memset(s, 0, sizeof *s);
    s->gpm_support = true;
    s->power = constant_wave(78);
    s->util = constant_wave(0);
    strcpy(s->name, mig < 0 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb");
    if (mig >= 0)
        return;
    snprintf(s->uuid, sizeof s->uuid, "GPU-5ca1ab1e-0000-4000-8000-%012d", gpu);
    snprintf(s->serial, sizeof s->serial, "16540000000%02d", gpu);
    strcpy(s->vbios, "96.00.BC.00.01");
    snprintf(s->bus_id, sizeof s->bus_id, "%08X:%02X:00.0", 0, 0x1B + gpu);
}

static void reset_config(Config *c)
{
    memset(c, 0, sizeof *c);
    c->gpus = 1;
    for (int g = 0; g < MAX_GPUS; g++)
        for (int m = 0; m <= MAX_MIGS; m++)
            reset_settings(&c->settings[g][m], g, m - 1);
}

/* ------------------------------------------------------------------------
 * 3. Histories: what levels were over time
 * ------------------------------------------------------------------------ */

typedef struct {
    double since;
    Wave wave;
} Segment;

/* The first segment is in place, since most histories have no other: allocated one by one in
 * the thread that loads the library, they would stay 3 MB of its arena after the unloading. */
typedef struct {
    Segment first, *later;
    int count;
} History;

typedef struct {
    History power, util, gpm[GPM_IDS];
} Past;

static Past pasts[MAX_GPUS][1 + MAX_MIGS];
static double energy_epoch;   /* where the energy counter starts */
static double clock_distance; /* CLOCK_REALTIME minus CLOCK_MONOTONIC, fixed at the first call */

static const Segment *segment_at(const History *h, int i)
{
    return i == 0 ? &h->first : &h->later[i - 1];
}

static void history_add(History *h, double since, Wave wave)
{
    if (h->count > 0) {
        Segment *last = h->count == 1 ? &h->first : &h->later[h->count - 2];
        if (memcmp(&last->wave, &wave, sizeof wave) == 0)
            return; /* unchanged: keeps its phase */
        if (last->since >= since) {
            last->wave = wave;
            return;
        }
    }
    if (h->count == 0) {
        h->first = (Segment){since, wave};
    } else {
        h->later = realloc(h->later, (size_t)h->count * sizeof *h->later);
        if (!h->later)
            abort();
        h->later[h->count - 1] = (Segment){since, wave};
    }
    h->count++;
}

/* A program that loads the library again and again must not grow. */
__attribute__((destructor)) static void forget_all(void)
{
    for (int g = 0; g < MAX_GPUS; g++) {
        for (int m = 0; m <= MAX_MIGS; m++) {
            Past *p = &pasts[g][m];
            free(p->power.later);
            free(p->util.later);
            for (int id = 0; id < GPM_IDS; id++)
                free(p->gpm[id].later);
        }
    }
}

/* The integral of a wave from its start to its age x (x may be negative). */
static double wave_integral(const Wave *w, double x)
{
    if (w->high == w->low)
        return w->high * x;
    double period = w->high_seconds + w->low_seconds;
    double whole = floor(x / period);
    double rest = x - whole * period;
    return whole * (w->high * w->high_seconds + w->low * w->low_seconds) +
           w->high * fmin(rest, w->high_seconds) + w->low * fmax(0, rest - w->high_seconds);
}

/* The first segment reaches back for ever, the last one holds until now. */
static double history_integral(const History *h, double from, double to)
{
    double sum = 0;
    for (int i = 0; i < h->count; i++) {
        const Segment *s = segment_at(h, i);
        double a = i == 0 ? from : fmax(from, s->since);
        double b = i + 1 == h->count ? to : fmin(to, segment_at(h, i + 1)->since);
        if (b > a)
            sum += wave_integral(&s->wave, b - s->since) - wave_integral(&s->wave, a - s->since);
    }
    return sum;
}

static double history_mean(const History *h, double from, double to)
{
    return history_integral(h, from, to) / (to - from);
}

/* ------------------------------------------------------------------------
 * Event sets (here, since an `xid` line queues into them)
 * ------------------------------------------------------------------------ */

typedef struct EventSet {
    unsigned long long types[MAX_GPUS]; /* registered event types, per GPU */
    EventData queue[MAX_QUEUE];
    int queued;
    bool operational[MAX_GPUS];
    unsigned min_severity[MAX_GPUS];
    Operational told[MAX_QUEUE], last; /* `last` is what the contexts are of */
    int told_count;
    struct EventSet *next;
} EventSet;

static EventSet *event_sets;
static int event_set_count;
static Xid *fired_xids;
static int fired_count;
static unsigned long long fired_operational[MAX_XIDS];
static int fired_operational_count;

__attribute__((destructor)) static void forget_events(void)
{
    while (event_sets) {
        EventSet *next = event_sets->next;
        free(event_sets);
        event_sets = next;
    }
    free(fired_xids);
}

static bool already_fired(const Xid *x)
{
    for (int i = 0; i < fired_count; i++) {
        const Xid *f = &fired_xids[i];
        if (f->gpu == x->gpu && f->mig == x->mig && f->serial == x->serial)
            return true;
    }
    return false;
}

static void fire(const Xid *x)
{
    fired_xids = realloc(fired_xids, (size_t)(fired_count + 1) * sizeof *fired_xids);
    if (!fired_xids)
        abort();
    fired_xids[fired_count++] = *x;
    EventData event = {&devices[x->gpu][0], EVENT_XID, x->number, ANY_ID, ANY_ID};
    if (x->mig >= 0) {
        event.gpu_instance = (unsigned)x->mig + 1;
        event.compute_instance = 0;
    }
    for (EventSet *set = event_sets; set; set = set->next)
        if (set->types[x->gpu] & EVENT_XID && set->queued < MAX_QUEUE)
            set->queue[set->queued++] = event;
}

static void fire_operational(const Operational *o)
{
    for (int i = 0; i < fired_operational_count; i++)
        if (fired_operational[i] == o->serial)
            return;
    if (fired_operational_count < MAX_XIDS)
        fired_operational[fired_operational_count++] = o->serial;
    for (EventSet *set = event_sets; set; set = set->next)
        if (set->operational[o->gpu] && o->event.severity >= set->min_severity[o->gpu]
            && set->told_count < MAX_QUEUE)
            set->told[set->told_count++] = *o;
}

/* Carries what the script now says into the histories and the event queues. */
static void commit(double when)
{
    for (int g = 0; g < MAX_GPUS; g++) {
        for (int m = 0; m <= MAX_MIGS; m++) {
            const Settings *s = &config.settings[g][m];
            Past *p = &pasts[g][m];
            history_add(&p->power, when, s->power);
            history_add(&p->util, when, s->util);
            for (int id = 0; id < GPM_IDS; id++)
                history_add(&p->gpm[id], when, constant_wave(s->gpm[id].level));
        }
    }
    for (int i = 0; i < config.xid_count; i++)
        if (!already_fired(&config.xids[i]))
            fire(&config.xids[i]);
    for (int i = 0; i < config.operational_count; i++)
        fire_operational(&config.operational[i]);
}

/* ------------------------------------------------------------------------
 * 4. The script
 * ------------------------------------------------------------------------ */

typedef struct {
    double at;
    int number;
    char *text;
} Line;

static struct {
    const char *path;
    struct stat seen;
    char *text;
    Line *lines; /* sorted by `at`; earlier lines first among equals */
    int count, next;
    double loaded, checked, applied;
    bool ready;
} script;

/* --- reading words and numbers: a mistake ends the process --- */

static const Line *current_line; /* for the message */

static void __attribute__((noreturn, format(printf, 1, 2))) script_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "fake nvml: %s:%d: ", script.path, current_line ? current_line->number : 0);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ": %s\n", current_line ? current_line->text : "");
    va_end(arguments);
    abort();
}

static char *skip_space(char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

/* The next word, cut off from the rest; NULL at the end of the line. */
static char *next_word(char **rest)
{
    char *word = skip_space(*rest);
    if (!*word)
        return NULL;
    char *end = word;
    while (*end && !isspace((unsigned char)*end))
        end++;
    *rest = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

static char *need_word(char **rest)
{
    char *word = next_word(rest);
    if (!word)
        script_error("something is missing");
    return word;
}

static void need_end(char **rest)
{
    char *word = next_word(rest);
    if (word)
        script_error("unexpected '%s'", word);
}

static double to_double(const char *word)
{
    char *end;
    double value = strtod(word, &end);
    if (end == word || *end)
        script_error("'%s' is no number", word);
    return value;
}

static unsigned long long to_integer(const char *word)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(word, &end, 0);
    if (!isdigit((unsigned char)*word) || *end || errno)
        script_error("'%s' is no whole number", word);
    return value;
}

static double need_double(char **rest)
{
    return to_double(need_word(rest));
}

static unsigned long long need_integer(char **rest)
{
    return to_integer(need_word(rest));
}

static int need_below(char **rest, int limit)
{
    char *word = need_word(rest);
    unsigned long long value = to_integer(word);
    if (value >= (unsigned long long)limit)
        script_error("'%s' must be below %d", word, limit);
    return (int)value;
}

/* `5`, `-3.5`, or a ramp: `5+100/s`, `5-0.1/s` */
static Number to_number(const char *word)
{
    Number n = {0, 0};
    char *end;
    n.base = strtod(word, &end);
    if (end == word)
        script_error("'%s' is no number", word);
    if (*end) {
        const char *sign = end;
        n.rate = strtod(sign, &end);
        if ((*sign != '+' && *sign != '-') || end == sign || strcmp(end, "/s") != 0)
            script_error("'%s' is neither a number nor a ramp (base+rate/s)", word);
    }
    return n;
}

static double number_now(Number n)
{
    return n.base + (n.rate != 0 ? n.rate * (monotonic() - script.loaded) : 0);
}

/* The rest of the line; \xHH in it is that byte. */
static void need_string(char **rest, char *out, size_t size)
{
    char *text = skip_space(*rest);
    size_t length = 0;
    unsigned byte;
    int skip;
    if (!*text)
        script_error("something is missing");
    while (*text) {
        if (length + 1 >= size)
            script_error("longer than %zu characters", size - 1);
        if (sscanf(text, "\\x%2x%n", &byte, &skip) == 1) {
            out[length++] = (char)byte;
            text += skip;
        } else {
            out[length++] = *text++;
        }
    }
    out[length] = '\0';
    *rest = text;
}

static Function need_function(char **rest)
{
    char *word = need_word(rest);
    for (int f = 0; f < FUNCTION_COUNT; f++)
        if (strcmp(word, function_names[f]) == 0)
            return (Function)f;
    script_error("no function '%s' (write it in full, without _vN)", word);
}

static Wave need_wave(char **rest)
{
    char *word = need_word(rest);
    if (strcmp(word, "square") != 0)
        return constant_wave(to_double(word));
    Wave w;
    w.high = need_double(rest);
    w.low = need_double(rest);
    w.high_seconds = need_double(rest);
    w.low_seconds = need_double(rest);
    if (!(w.high_seconds > 0 && w.low_seconds > 0))
        script_error("the two durations must be above 0");
    return w;
}

/* --- what a `gpu N …` or `mig N I …` line may say --- */

static int find_reading(const char *name)
{
    for (int i = 0; i < READING_COUNT; i++)
        if (strcmp(name, readings[i].name) == 0)
            return i;
    return -1;
}

static void say_set(Settings *s, char **rest)
{
    char *name = need_word(rest);
    int reading = find_reading(name);
    if (reading < 0)
        script_error("no reading '%s'", name);
    Number value = to_number(need_word(rest));
    int i = 0;
    while (i < s->override_count && s->overrides[i].reading != reading)
        i++;
    if (i == MAX_SETS)
        script_error("too many `set` lines");
    if (i == s->override_count)
        s->override_count++;
    s->overrides[i] = (Override){reading, value};
}

static void say_field(Settings *s, char **rest)
{
    Field field = {0};
    field.id = (unsigned)need_integer(rest);
    char *scope = need_word(rest);
    field.any_scope = strcmp(scope, "-") == 0;
    if (!field.any_scope)
        field.scope = (unsigned)to_integer(scope);
    char *word = need_word(rest);
    if (strcmp(word, "fail") == 0)
        field.fail = (Ret)need_integer(rest);
    else if (strcmp(word, "left") == 0)
        field.left = true;
    else if ((field.is_double = strcmp(word, "double") == 0))
        field.value = to_number(need_word(rest));
    else
        field.value = to_number(word);
    if (s->field_count == MAX_FIELDS)
        script_error("too many `field` lines");
    s->fields[s->field_count++] = field;
}

static GpmLevel *need_gpm_level(Settings *s, char **rest)
{
    int id = need_below(rest, GPM_IDS);
    return &s->gpm[id];
}

static void say_gpm(Settings *s, char **rest)
{
    GpmLevel *level = need_gpm_level(s, rest);
    level->listed = true;
    char *word = need_word(rest);
    if (strcmp(word, "fail") == 0) {
        level->fail = (Ret)need_integer(rest);
        return;
    }
    level->fail = OK;
    level->level = strcmp(word, "nan") == 0 ? NAN : to_double(word);
}

static void say_process(Settings *s, char **rest)
{
    Process p = {.kind = COMPUTE};
    p.pid = (unsigned)need_integer(rest);
    char *bytes = need_word(rest);
    p.bytes = strcmp(bytes, "unknown") == 0 ? ~0ull : to_integer(bytes);
    char *kind = next_word(rest);
    if (kind && strcmp(kind, "graphics") == 0)
        p.kind = GRAPHICS;
    else if (kind && strcmp(kind, "mps") == 0)
        p.kind = MPS;
    else if (kind && strcmp(kind, "compute") != 0)
        script_error("'%s' is neither compute nor graphics nor mps", kind);
    if (s->process_count == MAX_PROCESSES)
        script_error("too many `process` lines");
    s->processes[s->process_count++] = p;
}

static void say_fail(Ret *codes, char **rest)
{
    Function f = need_function(rest);
    codes[f] = (Ret)need_integer(rest);
}

static void say_hang(double *seconds, char **rest)
{
    Function f = need_function(rest);
    seconds[f] = need_double(rest);
}

static void say_xid(Config *c, int gpu, int mig, char **rest)
{
    Xid x = {gpu, mig, need_integer(rest), 0};
    x.serial = need_integer(rest);
    if (c->xid_count == MAX_XIDS)
        script_error("too many `xid` lines");
    c->xids[c->xid_count++] = x;
}

/* MODULE CODE CATEGORY SEVERITY ATTRIBUTES GROUP_ATTRIBUTES GROUP_SIZE TRACE XID SERIAL */
static void say_operational(Config *c, int gpu, char **rest)
{
    Operational o = {.gpu = gpu};
    WaitV3 *e = &o.event;
    char *module = need_word(rest);
    memcpy(e->module, module, strnlen(module, sizeof e->module));
    e->code = (unsigned)need_integer(rest);
    e->category = (unsigned)need_integer(rest);
    e->severity = (unsigned)need_integer(rest);
    e->attributes = (unsigned)need_integer(rest);
    e->group_attributes = (unsigned)need_integer(rest);
    e->group_size = (unsigned char)need_integer(rest);
    e->trace = need_integer(rest);
    o.xid = (unsigned)need_integer(rest);
    o.serial = need_integer(rest);
    e->data_type = 1;
    e->gpu_instance = e->compute_instance = ANY_ID;
    if (c->operational_count == MAX_XIDS)
        script_error("too many `operational` lines");
    c->operational[c->operational_count++] = o;
}

static void say_on_device(Config *c, int gpu, int mig, char **rest)
{
    Settings *s = &c->settings[gpu][mig + 1];
    char *word = need_word(rest);
    bool whole = mig < 0;
    if (strcmp(word, "uuid") == 0)
        need_string(rest, s->uuid, sizeof s->uuid);
    else if (strcmp(word, "name") == 0)
        need_string(rest, s->name, sizeof s->name);
    else if (whole && strcmp(word, "serial") == 0)
        need_string(rest, s->serial, sizeof s->serial);
    else if (whole && strcmp(word, "vbios") == 0)
        need_string(rest, s->vbios, sizeof s->vbios);
    else if (whole && strcmp(word, "bus_id") == 0)
        need_string(rest, s->bus_id, sizeof s->bus_id);
    else if (strcmp(word, "set") == 0)
        say_set(s, rest);
    else if (strcmp(word, "fail") == 0)
        say_fail(s->fail, rest);
    else if (strcmp(word, "hang") == 0)
        say_hang(s->hang, rest);
    else if (whole && strcmp(word, "lost") == 0)
        s->lost = true;
    else if (whole && strcmp(word, "field") == 0)
        say_field(s, rest);
    else if (strcmp(word, "gpm") == 0)
        say_gpm(s, rest);
    else if (strcmp(word, "gpm_unknown") == 0)
        need_gpm_level(s, rest)->unknown = true;
    else if (whole && strcmp(word, "gpm_support") == 0)
        s->gpm_support = need_below(rest, 2) != 0;
    else if (whole && strcmp(word, "power") == 0)
        s->power = need_wave(rest);
    else if (whole && strcmp(word, "util") == 0)
        s->util = need_wave(rest);
    else if (strcmp(word, "process") == 0)
        say_process(s, rest);
    else if (strcmp(word, "xid") == 0)
        say_xid(c, gpu, mig, rest);
    else if (whole && strcmp(word, "operational") == 0)
        say_operational(c, gpu, rest);
    else if (whole && strcmp(word, "mig") == 0)
        s->migs = need_below(rest, MAX_MIGS + 1);
    else
        script_error("unknown word '%s'", word);
}

static void say_init(Config *c, char **rest)
{
    char *word = need_word(rest);
    if (strcmp(word, "hang") == 0)
        c->init_hang = need_double(rest);
    else
        c->init = (Ret)to_integer(word);
}

static void say_system(Config *c, char **rest)
{
    char *word = need_word(rest);
    if (strcmp(word, "fail") == 0)
        say_fail(c->fail, rest);
    else
        c->system = (Ret)to_integer(word);
}

/* Makes one line (without its `at`) true in a Config. */
static void apply_line(Config *c, const Line *line)
{
    char copy[1024];
    current_line = line;
    if (strlen(line->text) >= sizeof copy)
        script_error("line too long");
    strcpy(copy, line->text);
    char *rest = copy;
    char *word = need_word(&rest);
    if (strcmp(word, "init") == 0) {
        say_init(c, &rest);
    } else if (strcmp(word, "system") == 0) {
        say_system(c, &rest);
    } else if (strcmp(word, "gpus") == 0) {
        c->gpus = need_below(&rest, MAX_GPUS + 1);
    } else if (strcmp(word, "gpu") == 0) {
        int gpu = need_below(&rest, MAX_GPUS);
        say_on_device(c, gpu, -1, &rest);
    } else if (strcmp(word, "mig") == 0) {
        int gpu = need_below(&rest, MAX_GPUS);
        int mig = need_below(&rest, MAX_MIGS);
        say_on_device(c, gpu, mig, &rest);
    } else {
        script_error("unknown word '%s'", word);
    }
    need_end(&rest);
    current_line = NULL;
}

/* --- loading it --- */

static char *read_script(struct stat *status)
{
    FILE *file = fopen(script.path, "r");
    if (!file || fstat(fileno(file), status) != 0) {
        if (file)
            fclose(file);
        return NULL;
    }
    char *text = malloc((size_t)status->st_size + 1);
    size_t length = text ? fread(text, 1, (size_t)status->st_size, file) : 0;
    fclose(file);
    if (text)
        text[length] = '\0';
    return text;
}

/* Cuts off a comment: a # at the start or after a space. */
static void cut_comment(char *text)
{
    for (char *p = text; *p; p++) {
        if (*p == '#' && (p == text || isspace((unsigned char)p[-1]))) {
            *p = '\0';
            return;
        }
    }
}

static void cut_trailing_space(char *text)
{
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
}

/* Takes a leading `at <seconds>` off a line. */
static void take_at(Line *line)
{
    if (strncmp(line->text, "at", 2) != 0 || !isspace((unsigned char)line->text[2]))
        return;
    current_line = line;
    char *rest = line->text + 2;
    line->at = need_double(&rest);
    line->text = skip_space(rest);
    if (!(line->at >= 0))
        script_error("`at` must not be negative");
    current_line = NULL;
}

static void insert_line(Line line)
{
    int i = script.count++;
    while (i > 0 && script.lines[i - 1].at > line.at) {
        script.lines[i] = script.lines[i - 1];
        i--;
    }
    script.lines[i] = line;
}

static void split_lines(char *text)
{
    int newlines = 1;
    for (const char *p = text; *p; p++)
        newlines += *p == '\n';
    free(script.lines);
    script.lines = calloc((size_t)newlines, sizeof *script.lines);
    script.count = script.next = 0;
    if (!script.lines)
        abort();
    int number = 0;
    for (char *p = text; p;) {
        char *newline = strchr(p, '\n');
        if (newline)
            *newline = '\0';
        cut_comment(p);
        cut_trailing_space(p);
        Line line = {0, ++number, skip_space(p)};
        if (*line.text) {
            take_at(&line);
            insert_line(line);
        }
        p = newline ? newline + 1 : NULL;
    }
}

/* Aborts on a mistake now, even in a line that takes effect much later. */
static void check_lines(void)
{
    static Config scratch;
    reset_config(&scratch);
    for (int i = 0; i < script.count; i++)
        apply_line(&scratch, &script.lines[i]);
}

/* Applies the lines whose time has come, those of one time together. */
static void apply_due(double now)
{
    while (script.next < script.count) {
        double at = script.lines[script.next].at;
        if (script.loaded + at > now)
            return;
        while (script.next < script.count && script.lines[script.next].at == at)
            apply_line(&config, &script.lines[script.next++]);
        commit(script.loaded + at);
    }
}

static bool script_changed(const struct stat *now)
{
    const struct stat *seen = &script.seen;
    return now->st_ino != seen->st_ino || now->st_size != seen->st_size ||
           now->st_mtim.tv_sec != seen->st_mtim.tv_sec || now->st_mtim.tv_nsec != seen->st_mtim.tv_nsec;
}

/* Reads the script. It counts as read when it was written, but no earlier
 * than the last call that saw the one before. */
static void load_script(double now)
{
    double loaded = now;
    char *text = read_script(&script.seen);
    if (!text) {
        if (script.ready)
            return; /* removed: the last one stays */
        fprintf(stderr, "fake nvml: cannot read %s\n", script.path);
        abort();
    }
    if (script.ready) {
        const struct timespec *written = &script.seen.st_mtim;
        loaded = (double)written->tv_sec + (double)written->tv_nsec / 1e9 - clock_distance;
        loaded = fmin(fmax(loaded, script.applied), now);
        apply_due(loaded);
    }
    split_lines(text);
    free(script.text);
    script.text = text;
    check_lines();
    script.loaded = loaded;
    reset_config(&config);
    while (script.next < script.count && script.lines[script.next].at == 0)
        apply_line(&config, &script.lines[script.next++]);
    commit(loaded);
}

static void first_load(double now)
{
    for (int g = 0; g < MAX_GPUS; g++)
        for (int m = 0; m <= MAX_MIGS; m++)
            devices[g][m] = (Device){g, m - 1};
    clock_distance = realtime() - now;
    energy_epoch = script.loaded = now;
    script.path = getenv("FAKE_NVML");
    if (script.path) {
        load_script(now);
    } else {
        reset_config(&config);
        commit(now);
    }
    script.ready = true;
}

/* Brings everything up to the present. Every call starts with it. */
static void refresh(void)
{
    double now = monotonic();
    struct stat status;
    if (!script.ready) {
        first_load(now);
        script.checked = now;
    } else if (script.path && now - script.checked >= SCRIPT_CHECK_SECONDS) {
        script.checked = now;
        if (stat(script.path, &status) == 0 && script_changed(&status))
            load_script(now);
    }
    apply_due(now);
    script.applied = now;
}

/* ------------------------------------------------------------------------
 * 5. What every call does first and last
 * ------------------------------------------------------------------------ */

static bool known_device(const Device *d)
{
    uintptr_t offset = (uintptr_t)d - (uintptr_t)devices;
    return offset < sizeof devices && offset % sizeof(Device) == 0;
}

static Settings *settings_of(const Device *d)
{
    return &config.settings[d->gpu][d->mig + 1];
}

static Settings *parent_settings(const Device *d)
{
    return &config.settings[d->gpu][0];
}

static Past *past_of(const Device *d)
{
    return &pasts[d->gpu][d->mig + 1];
}

/* Sleeps without the mutex, at most 50 ms, then looks at the script again. */
static void nap(double seconds)
{
    pthread_mutex_unlock(&mutex);
    long nanoseconds = (long)(fmin(fmax(seconds, 0.001), 0.05) * 1e9);
    nanosleep(&(struct timespec){0, nanoseconds}, NULL);
    pthread_mutex_lock(&mutex);
    refresh();
}

/* *seconds is where the script keeps the duration: 0 again when the line goes. */
static void sit_out_hang(const double *seconds)
{
    double start = monotonic();
    double left;
    while ((left = *seconds - (monotonic() - start)) > 0)
        nap(left);
}

/* What the script makes of one call on one device. */
static Ret judge(const Device *d, Function f)
{
    const Settings *s = settings_of(d);
    sit_out_hang(&s->hang[f]);
    if (initialised == 0)
        return UNINITIALIZED;
    if (config.system != OK)
        return config.system;
    if (parent_settings(d)->lost || d->gpu >= config.gpus)
        return GPU_IS_LOST;
    if (d->mig >= parent_settings(d)->migs)
        return INVALID_ARGUMENT;
    return s->fail[f];
}

/* Takes the mutex, which leave gives back whatever this returns. */
static _Atomic int calls; /* in flight */

/* What would be a crash now and then in a real library is one each time in this. */
static void end_if_called(const char *during)
{
    if (calls > 1) {
        fprintf(stderr, "fake nvml: %s during %d calls\n", during, calls - 1);
        abort();
    }
}

__attribute__((destructor)) static void unload(void)
{
    calls++;
    end_if_called("unloaded");
}

static Ret enter(Function f)
{
    calls++;
    pthread_mutex_lock(&mutex);
    if (initialised == 0)
        return UNINITIALIZED;
    refresh();
    return config.fail[f];
}

static Ret enter_device(const Device *d, Function f)
{
    Ret r = enter(f);
    if (r == OK && !known_device(d))
        r = INVALID_ARGUMENT;
    return r == OK ? judge(d, f) : r;
}

static Ret leave(Ret r)
{
    pthread_mutex_unlock(&mutex);
    calls--;
    return r;
}

static Ret copy_string(const char *text, char *out, unsigned size)
{
    if (!out)
        return INVALID_ARGUMENT;
    if (!*text)
        return NOT_SUPPORTED;
    if (strlen(text) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

static unsigned long long to_ull(double value)
{
    return value < 0 ? (unsigned long long)(long long)value : (unsigned long long)value;
}

static unsigned to_uint(double value)
{
    return (unsigned)(long long)value;
}

/* --- samples of power and utilisation --- */

typedef struct {
    unsigned long long step_us; /* one sample per */
    unsigned depth;
    double scale;
} SampleKind;

static const SampleKind power_samples = {20000, 120, 1000}; /* W in the script, mW here */
static const SampleKind util_samples = {200000, 71, 1};

static unsigned long long newest_sample_time(const SampleKind *kind)
{
    return microseconds_now() / kind->step_us * kind->step_us;
}

/* The mean over the step that ends at the sample's time. */
static unsigned sample_at(const SampleKind *kind, const History *h, unsigned long long time_us)
{
    double end = (double)time_us / 1e6 - clock_distance;
    double step = (double)kind->step_us / 1e6;
    return to_uint(round(history_mean(h, end - step, end) * kind->scale));
}

/* --- readings --- */

static double energy_mj(const Device *d)
{
    return ENERGY_AT_START_MJ + 1000 * history_integral(&past_of(d)->power, energy_epoch, monotonic());
}

static double power_usage_mw(const Device *d)
{
    double now = monotonic();
    return round(1000 * history_mean(&past_of(d)->power, now - 1, now));
}

static double reading(const Device *d, const char *name);

static double derived_reading(const Device *d, const char *name)
{
    if (strcmp(name, "MinorNumber") == 0)
        return d->gpu;
    if (strcmp(name, "PowerUsage") == 0)
        return power_usage_mw(d);
    if (strcmp(name, "TotalEnergyConsumption") == 0)
        return energy_mj(d);
    if (strcmp(name, "UtilizationRates.gpu") == 0)
        return sample_at(&util_samples, &past_of(d)->util, newest_sample_time(&util_samples));
    if (strcmp(name, "UtilizationRates.memory") == 0)
        return floor(reading(d, "UtilizationRates.gpu") / 2);
    if (strcmp(name, "CurrentClocksThrottleReasons") == 0)
        return reading(d, "CurrentClocksEventReasons");
    if (strcmp(name, "MemoryInfo.total") == 0)
        return d->mig >= 0 ? 17716740096.0 : 150754820096.0;
    if (strcmp(name, "MemoryInfo.reserved") == 0)
        return d->mig >= 0 ? 0 : 644939776;
    if (strcmp(name, "GpuInstanceInfo.start") == 0)
        return d->mig;
    fprintf(stderr, "fake nvml: no derived reading %s\n", name);
    abort();
}

static const Override *find_override(const Device *d, int index)
{
    const Settings *s = settings_of(d);
    for (int i = 0; i < s->override_count; i++)
        if (s->overrides[i].reading == index)
            return &s->overrides[i];
    return NULL;
}

static double reading(const Device *d, const char *name)
{
    int index = find_reading(name);
    if (index < 0) {
        fprintf(stderr, "fake nvml: no reading %s\n", name);
        abort();
    }
    const Override *o = find_override(d, index);
    if (o)
        return number_now(o->value);
    return isnan(readings[index].value) ? derived_reading(d, name) : readings[index].value;
}

/* A MIG instance has only the readings that the script sets on it. */
static bool has_reading(const Device *d, const char *name)
{
    return d->mig < 0 || find_override(d, find_reading(name));
}

static Ret scalar(const Device *d, Function f, const char *name, const void *out, double *value)
{
    Ret r = enter_device(d, f);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK && !has_reading(d, name))
        r = NOT_SUPPORTED;
    if (r == OK)
        *value = reading(d, name);
    return leave(r);
}

static Ret uint_scalar(const Device *d, Function f, const char *name, unsigned *out)
{
    double value;
    Ret r = scalar(d, f, name, out, &value);
    if (r == OK)
        *out = to_uint(value);
    return r;
}

static Ret ull_scalar(const Device *d, Function f, const char *name, unsigned long long *out)
{
    double value;
    Ret r = scalar(d, f, name, out, &value);
    if (r == OK)
        *out = to_ull(value);
    return r;
}

static Ret uint_pair(const Device *d, Function f, const char *first, const char *second, unsigned *a, unsigned *b)
{
    Ret r = enter_device(d, f);
    if (r == OK && (!a || !b))
        r = INVALID_ARGUMENT;
    if (r == OK && !(has_reading(d, first) && has_reading(d, second)))
        r = NOT_SUPPORTED;
    if (r == OK) {
        *a = to_uint(reading(d, first));
        *b = to_uint(reading(d, second));
    }
    return leave(r);
}

/* ------------------------------------------------------------------------
 * 6. The calls: library and system
 * ------------------------------------------------------------------------ */

/* pynvml's nvmlInit calls this one. */
Ret nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    calls++;
    pthread_mutex_lock(&mutex);
    refresh();
    sit_out_hang(&config.init_hang);
    if (config.init == OK)
        initialised++;
    return leave(config.init);
}

Ret nvmlShutdown(void)
{
    calls++;
    end_if_called("shut down");
    calls--;
    Ret r = enter(F_nvmlShutdown);
    if (r == OK)
        initialised--;
    return leave(r);
}

const char *nvmlErrorString(Ret code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request", "Driver/library version mismatch", "In use",
        "Insufficient Memory", "No data", "vGPU ECC not supported", "Insufficient resources",
        "Frequency not supported", "Argument version mismatch",
    };
    return code < sizeof texts / sizeof texts[0] ? texts[code] : "Unknown Error";
}

/* --- devices and who they are --- */

Ret nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    Ret r = enter(F_nvmlSystemGetDriverVersion);
    if (r == OK)
        r = copy_string("580.159.04", version, length);
    return leave(r);
}

Ret nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    Ret r = enter(F_nvmlSystemGetCudaDriverVersion);
    if (r == OK)
        *version = 13000;
    return leave(r);
}

Ret nvmlDeviceGetCount_v2(unsigned *count)
{
    Ret r = enter(F_nvmlDeviceGetCount);
    if (r == OK)
        r = config.system;
    if (r == OK && !count)
        r = INVALID_ARGUMENT;
    if (r == OK)
        *count = (unsigned)config.gpus;
    return leave(r);
}

Ret nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out)
{
    Ret r = enter(F_nvmlDeviceGetHandleByIndex);
    if (r == OK)
        r = config.system;
    if (r == OK && (!out || index >= (unsigned)config.gpus))
        r = INVALID_ARGUMENT;
    if (r == OK)
        r = judge(&devices[index][0], F_nvmlDeviceGetHandleByIndex);
    if (r == OK)
        *out = &devices[index][0];
    return leave(r);
}

static void uuid_of(const Device *d, char *out, size_t size)
{
    const char *own = settings_of(d)->uuid;
    const char *parent = parent_settings(d)->uuid;
    if (d->mig < 0 || *own) {
        snprintf(out, size, "%s", own);
        return;
    }
    if (strncmp(parent, "GPU-", 4) == 0)
        parent += 4;
    snprintf(out, size, "MIG-%s-%d", parent, d->mig);
}

Ret nvmlDeviceGetUUID(Device *d, char *uuid, unsigned length)
{
    char text[128];
    Ret r = enter_device(d, F_nvmlDeviceGetUUID);
    if (r == OK) {
        uuid_of(d, text, sizeof text);
        r = copy_string(text, uuid, length);
    }
    return leave(r);
}

Ret nvmlDeviceGetName(Device *d, char *name, unsigned length)
{
    Ret r = enter_device(d, F_nvmlDeviceGetName);
    if (r == OK)
        r = copy_string(settings_of(d)->name, name, length);
    return leave(r);
}

Ret nvmlDeviceGetSerial(Device *d, char *serial, unsigned length)
{
    Ret r = enter_device(d, F_nvmlDeviceGetSerial);
    if (r == OK)
        r = copy_string(settings_of(d)->serial, serial, length);
    return leave(r);
}

Ret nvmlDeviceGetVbiosVersion(Device *d, char *version, unsigned length)
{
    Ret r = enter_device(d, F_nvmlDeviceGetVbiosVersion);
    if (r == OK)
        r = copy_string(settings_of(d)->vbios, version, length);
    return leave(r);
}

Ret nvmlDeviceGetGspFirmwareVersion(Device *d, char *version)
{
    Ret r = enter_device(d, F_nvmlDeviceGetGspFirmwareVersion);
    if (r == OK)
        strcpy(version, "580.159.04");
    return leave(r);
}

Ret nvmlDeviceGetInforomImageVersion(Device *d, char *version, unsigned length)
{
    Ret r = enter_device(d, F_nvmlDeviceGetInforomImageVersion);
    if (r == OK)
        r = copy_string("G525.0225.00.05", version, length);
    return leave(r);
}

Ret nvmlDeviceGetPciInfo_v3(Device *d, PciInfo *pci)
{
    Ret r = enter_device(d, F_nvmlDeviceGetPciInfo);
    if (r == OK && !pci)
        r = INVALID_ARGUMENT;
    if (r == OK) {
        memset(pci, 0, sizeof *pci);
        pci->bus = 0x1B + (unsigned)d->gpu;
        strcpy(pci->bus_id, settings_of(d)->bus_id);
        snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:00.0", pci->domain & 0xFFFF, pci->bus & 0xFF);
        pci->pci_device_id = 0x233510DE;
        pci->pci_subsystem_id = 0x18BE10DE;
    }
    return leave(r);
}

/* --- readings that need no more than their name --- */

#define UINT_GETTER(NAME) \
    Ret nvmlDeviceGet##NAME(Device *d, unsigned *out) { return uint_scalar(d, F_nvmlDeviceGet##NAME, #NAME, out); }
#define ULL_GETTER(NAME) \
    Ret nvmlDeviceGet##NAME(Device *d, unsigned long long *out) \
    { \
        return ull_scalar(d, F_nvmlDeviceGet##NAME, #NAME, out); \
    }
#define PAIR_GETTER(NAME, FIRST, SECOND) \
    Ret nvmlDeviceGet##NAME(Device *d, unsigned *first, unsigned *second) \
    { \
        return uint_pair(d, F_nvmlDeviceGet##NAME, #NAME "." #FIRST, #NAME "." #SECOND, first, second); \
    }

UINT_GETTER(MinorNumber)
UINT_GETTER(MemoryBusWidth)
UINT_GETTER(PowerUsage)
UINT_GETTER(EnforcedPowerLimit)
UINT_GETTER(PowerManagementDefaultLimit)
UINT_GETTER(PowerManagementLimit)
UINT_GETTER(PersistenceMode)
UINT_GETTER(PerformanceState)
UINT_GETTER(CurrPcieLinkGeneration)
UINT_GETTER(CurrPcieLinkWidth)
UINT_GETTER(MaxPcieLinkGeneration)
UINT_GETTER(MaxPcieLinkWidth)
UINT_GETTER(PcieReplayCounter)
UINT_GETTER(MaxMigDeviceCount)
ULL_GETTER(CurrentClocksThrottleReasons)
ULL_GETTER(TotalEnergyConsumption)
PAIR_GETTER(CudaComputeCapability, major, minor)
PAIR_GETTER(PowerManagementLimitConstraints, min, max)
PAIR_GETTER(EncoderUtilization, percent, period)
PAIR_GETTER(DecoderUtilization, percent, period)

#ifndef OLD_DRIVER
ULL_GETTER(CurrentClocksEventReasons)
#endif

/* --- readings with an argument --- */

/* A reading chosen by an argument. */
static Ret uint_choice(Device *d, Function f, const char *const *names, unsigned count, unsigned choice, unsigned *out)
{
    if (choice >= count || !names[choice]) {
        Ret r = enter_device(d, f);
        return leave(r == OK ? INVALID_ARGUMENT : r);
    }
    return uint_scalar(d, f, names[choice], out);
}

Ret nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *clock)
{
    static const char *const names[] = {NULL, "ClockInfo.sm", "ClockInfo.mem"};
    return uint_choice(d, F_nvmlDeviceGetClockInfo, names, 3, type, clock);
}

Ret nvmlDeviceGetMaxClockInfo(Device *d, unsigned type, unsigned *clock)
{
    static const char *const names[] = {NULL, "MaxClockInfo.sm", "MaxClockInfo.mem"};
    return uint_choice(d, F_nvmlDeviceGetMaxClockInfo, names, 3, type, clock);
}

Ret nvmlDeviceGetTemperature(Device *d, unsigned sensor, unsigned *temperature)
{
    static const char *const names[] = {"Temperature"};
    return uint_choice(d, F_nvmlDeviceGetTemperature, names, 1, sensor, temperature);
}

Ret nvmlDeviceGetTemperatureThreshold(Device *d, unsigned kind, unsigned *temperature)
{
    static const char *const names[] = {"TemperatureThreshold.shutdown", "TemperatureThreshold.slowdown",
                                        "TemperatureThreshold.mem_max", "TemperatureThreshold.gpu_max"};
    return uint_choice(d, F_nvmlDeviceGetTemperatureThreshold, names, 4, kind, temperature);
}

Ret nvmlDeviceValidateInforom(Device *d) { return leave(enter_device(d, F_nvmlDeviceValidateInforom)); }

Ret nvmlDeviceGetTotalEccErrors(Device *d, unsigned error, unsigned counter, unsigned long long *count)
{
    static const char *const names[] = {"TotalEccErrors.corrected_volatile", "TotalEccErrors.uncorrected_volatile",
                                        "TotalEccErrors.corrected_aggregate", "TotalEccErrors.uncorrected_aggregate"};
    if (error > 1 || counter > 1) {
        Ret r = enter_device(d, F_nvmlDeviceGetTotalEccErrors);
        return leave(r == OK ? INVALID_ARGUMENT : r);
    }
    return ull_scalar(d, F_nvmlDeviceGetTotalEccErrors, names[2 * counter + error], count);
}

/* --- readings in a struct --- */

#ifndef OLD_DRIVER
Ret nvmlDeviceGetMarginTemperature(Device *d, MarginTemperature *t)
{
    Ret r = enter_device(d, F_nvmlDeviceGetMarginTemperature);
    if (r == OK && !t)
        r = INVALID_ARGUMENT;
    if (r == OK && t->version != VERSION_OF(MarginTemperature, 1))
        r = VERSION_MISMATCH;
    if (r == OK && !has_reading(d, "MarginTemperature"))
        r = NOT_SUPPORTED;
    if (r == OK)
        t->margin = (int)reading(d, "MarginTemperature");
    return leave(r);
}
#endif

Ret nvmlDeviceGetUtilizationRates(Device *d, Utilization *u)
{
    Ret r = enter_device(d, F_nvmlDeviceGetUtilizationRates);
    if (r == OK && !u)
        r = INVALID_ARGUMENT;
    if (r == OK && (d->mig >= 0 || settings_of(d)->migs > 0))
        r = NOT_SUPPORTED;
    if (r == OK) {
        u->gpu = to_uint(reading(d, "UtilizationRates.gpu"));
        u->memory = to_uint(reading(d, "UtilizationRates.memory"));
    }
    return leave(r);
}

static MemoryV2 memory_of(const Device *d)
{
    MemoryV2 m = {.version = VERSION_OF(MemoryV2, 2)};
    m.total = to_ull(reading(d, "MemoryInfo.total"));
    m.reserved = to_ull(reading(d, "MemoryInfo.reserved"));
    m.used = to_ull(reading(d, "MemoryInfo.used"));
    m.free = m.total - m.reserved - m.used;
    return m;
}

/* The first version of this call counts what the driver reserves as used. */
Ret nvmlDeviceGetMemoryInfo(Device *d, Memory *out)
{
    Ret r = enter_device(d, F_nvmlDeviceGetMemoryInfo);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK) {
        MemoryV2 m = memory_of(d);
        *out = (Memory){m.total, m.free, m.used + m.reserved};
    }
    return leave(r);
}

#ifndef OLD_DRIVER
Ret nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *out)
{
    Ret r = enter_device(d, F_nvmlDeviceGetMemoryInfo);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK && out->version != VERSION_OF(MemoryV2, 2))
        r = VERSION_MISMATCH;
    if (r == OK)
        *out = memory_of(d);
    return leave(r);
}
#endif

Ret nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    Ret r = enter_device(d, F_nvmlDeviceGetRemappedRows);
    if (r == OK && !(corrected && uncorrected && pending && failed))
        r = INVALID_ARGUMENT;
    if (r == OK && d->mig >= 0)
        r = NOT_SUPPORTED;
    if (r == OK) {
        *corrected = to_uint(reading(d, "RemappedRows.corrected"));
        *uncorrected = to_uint(reading(d, "RemappedRows.uncorrected"));
        *pending = to_uint(reading(d, "RemappedRows.pending"));
        *failed = to_uint(reading(d, "RemappedRows.failed"));
    }
    return leave(r);
}

#ifndef OLD_DRIVER
Ret nvmlDeviceGetGpuFabricInfoV(Device *d, Fabric *f)
{
    Ret r = enter_device(d, F_nvmlDeviceGetGpuFabricInfoV);
    if (r == OK && !f)
        r = INVALID_ARGUMENT;
    bool third = r == OK && f->version == VERSION_OF(Fabric, 3);
    bool known = third || (r == OK && f->version == (FABRIC_V2 | 2u << 24));
    if (r == OK && (!known || (third && reading(d, "GpuFabricInfoV.version") < 3)))
        r = VERSION_MISMATCH;
    if (r == OK && d->mig >= 0)
        r = NOT_SUPPORTED;
    if (r == OK) {
        memset(f->cluster, (int)to_uint(reading(d, "GpuFabricInfoV.cluster")), sizeof f->cluster);
        f->status = to_uint(reading(d, "GpuFabricInfoV.status"));
        f->clique = to_uint(reading(d, "GpuFabricInfoV.clique"));
        f->state = to_uint(reading(d, "GpuFabricInfoV.state"));
        f->health_mask = to_uint(reading(d, "GpuFabricInfoV.health_mask"));
        if (third)
            f->summary = (uint8_t)to_uint(reading(d, "GpuFabricInfoV.health_summary"));
    }
    return leave(r);
}
#endif

Ret nvmlDeviceGetRowRemapperHistogram(Device *d, RemapHistogram *h)
{
    Ret r = enter_device(d, F_nvmlDeviceGetRowRemapperHistogram);
    if (r == OK && !h)
        r = INVALID_ARGUMENT;
    if (r == OK && d->mig >= 0)
        r = NOT_SUPPORTED;
    if (r == OK) {
        h->max = to_uint(reading(d, "RowRemapperHistogram.max"));
        h->high = to_uint(reading(d, "RowRemapperHistogram.high"));
        h->partial = to_uint(reading(d, "RowRemapperHistogram.partial"));
        h->low = to_uint(reading(d, "RowRemapperHistogram.low"));
        h->none = to_uint(reading(d, "RowRemapperHistogram.none"));
    }
    return leave(r);
}

Ret nvmlDeviceGetSramEccErrorStatus(Device *d, SramStatus *s)
{
    Ret r = enter_device(d, F_nvmlDeviceGetSramEccErrorStatus);
    if (r == OK && !s)
        r = INVALID_ARGUMENT;
    if (r == OK && s->version != VERSION_OF(SramStatus, 1))
        r = VERSION_MISMATCH;
    if (r == OK && d->mig >= 0)
        r = NOT_SUPPORTED;
    if (r == OK) {
        memset(s->counts, 0, sizeof s->counts);
        s->exceeded = to_uint(reading(d, "SramEccErrorStatus.exceeded"));
    }
    return leave(r);
}

Ret nvmlDeviceGetUnrepairableMemoryFlag_v1(Device *d, Unrepairable *u)
{
    Ret r = enter_device(d, F_nvmlDeviceGetUnrepairableMemoryFlag);
    if (r == OK && !u)
        r = INVALID_ARGUMENT;
    if (r == OK && u->version != VERSION_OF(Unrepairable, 1))
        r = VERSION_MISMATCH;
    if (r == OK)
        u->flag = to_uint(reading(d, "UnrepairableMemoryFlag"));
    return leave(r);
}

#ifndef OLD_DRIVER

/* nvml.h of R615: nvmlAdaptiveTgpModeInfo_v1_t, which bears no version */
Ret nvmlDeviceGetAdaptiveTgpModeInfo_v1(Device *d, AdaptiveTgp *out)
{
    Ret r = enter_device(d, F_nvmlDeviceGetAdaptiveTgpModeInfo);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK)
        *out = (AdaptiveTgp){.status = to_uint(reading(d, "AdaptiveTgpModeInfo"))};
    return leave(r);
}

Ret nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(Device *d, PowerProfiles *out)
{
    Ret r = enter_device(d, F_nvmlDeviceWorkloadPowerProfileGetCurrentProfiles);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK && out->version != VERSION_OF(PowerProfiles, 1))
        r = VERSION_MISMATCH;
    if (r == OK)
        out->enforced[0] = to_uint(reading(d, "WorkloadPowerProfileGetCurrentProfiles"));
    return leave(r);
}

#endif

Ret nvmlDeviceGetVirtualizationMode(Device *d, unsigned *mode)
{
    Ret r = enter_device(d, F_nvmlDeviceGetVirtualizationMode);
    if (r == OK && !mode)
        r = INVALID_ARGUMENT;
    if (r == OK)
        *mode = to_uint(reading(d, "VirtualizationMode"));
    return leave(r);
}

/* Of the whole system: what the script sets on the first GPU. */
Ret nvmlSystemGetConfComputeState(ConfComputeState *state)
{
    Ret r = enter(F_nvmlSystemGetConfComputeState);
    const Device first = {0, -1};
    if (r == OK && !state)
        r = INVALID_ARGUMENT;
    if (r == OK) {
        state->environment = 0;
        state->feature = to_uint(reading(&first, "ConfComputeState.feature"));
        state->devtools = to_uint(reading(&first, "ConfComputeState.devtools"));
    }
    return leave(r);
}

Ret nvmlDeviceGetP2PStatus(Device *d, Device *other, unsigned what, unsigned *status)
{
    const unsigned nvlink = 2;
    Ret r = enter_device(d, F_nvmlDeviceGetP2PStatus);
    if (r == OK && (!known_device(other) || what != nvlink || !status))
        r = INVALID_ARGUMENT;
    if (r == OK)
        *status = to_uint(reading(d, "P2PStatus"));
    return leave(r);
}

/* A guest's licence for a virtual GPU, or none. */
Ret nvmlDeviceGetGridLicensableFeatures_v4(Device *d, GridFeatures *out)
{
    const unsigned vgpu = 1;
    Ret r = enter_device(d, F_nvmlDeviceGetGridLicensableFeatures);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK) {
        memset(out, 0, sizeof *out);
        out->supported = reading(d, "GridLicensableFeatures.supported") != 0;
        out->count = (unsigned)out->supported;
        out->features[0].code = vgpu;
        out->features[0].state = to_uint(reading(d, "GridLicensableFeatures.state"));
    }
    return leave(r);
}

/* --- MIG --- */

Ret nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending)
{
    Ret r = enter_device(d, F_nvmlDeviceGetMigMode);
    if (r == OK && (!current || !pending || d->mig >= 0))
        r = INVALID_ARGUMENT;
    if (r == OK)
        *current = *pending = settings_of(d)->migs > 0;
    return leave(r);
}

Ret nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **out)
{
    Ret r = enter_device(d, F_nvmlDeviceGetMigDeviceHandleByIndex);
    if (r == OK && (!out || d->mig >= 0 || index >= MAX_MIGS))
        r = INVALID_ARGUMENT;
    if (r == OK && settings_of(d)->migs == 0)
        r = NOT_SUPPORTED;
    if (r == OK && index >= (unsigned)settings_of(d)->migs)
        r = NOT_FOUND;
    if (r == OK)
        *out = &devices[d->gpu][1 + index];
    return leave(r);
}

Ret nvmlDeviceGetGpuInstanceId(Device *d, unsigned *id)
{
    Ret r = enter_device(d, F_nvmlDeviceGetGpuInstanceId);
    if (r == OK && (!id || d->mig < 0))
        r = INVALID_ARGUMENT;
    if (r == OK)
        *id = (unsigned)d->mig + 1;
    return leave(r);
}

/* The handle of a GPU instance is that of its only MIG device. */
Ret nvmlDeviceGetGpuInstanceById(Device *d, unsigned id, Device **out)
{
    Ret r = enter_device(d, F_nvmlDeviceGetGpuInstanceById);
    if (r == OK && (!out || d->mig >= 0))
        r = INVALID_ARGUMENT;
    if (r == OK && (id == 0 || id > (unsigned)settings_of(d)->migs))
        r = NOT_FOUND;
    if (r == OK)
        *out = &devices[d->gpu][id];
    return leave(r);
}

Ret nvmlGpuInstanceGetInfo(Device *d, GpuInstanceInfo *out)
{
    Ret r = enter_device(d, F_nvmlDeviceGetGpuInstanceById);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK)
        *out = (GpuInstanceInfo){&devices[d->gpu][0], (unsigned)d->mig + 1,
                                 to_uint(reading(d, "GpuInstanceInfo.profile")),
                                 to_uint(reading(d, "GpuInstanceInfo.start")), 1};
    return leave(r);
}

/* --- processes --- */

static void add_processes(const Device *d, ProcessKind kind, ProcessInfo *out, unsigned room, unsigned *count)
{
    const Settings *s = settings_of(d);
    for (int i = 0; i < s->process_count; i++) {
        const Process *p = &s->processes[i];
        if (p->kind != kind)
            continue;
        if (out && *count < room) {
            bool instance = d->mig >= 0;
            out[*count] = (ProcessInfo){p->pid, p->bytes, instance ? (unsigned)d->mig + 1 : ANY_ID,
                                        instance ? 0 : ANY_ID};
        }
        ++*count;
    }
}

/* A whole GPU also lists the processes of its MIG instances. */
static unsigned list_processes(const Device *d, ProcessKind kind, ProcessInfo *out, unsigned room)
{
    unsigned count = 0;
    add_processes(d, kind, out, room, &count);
    for (int m = 0; d->mig < 0 && m < settings_of(d)->migs; m++)
        add_processes(&devices[d->gpu][1 + m], kind, out, room, &count);
    return count;
}

static Ret running_processes(Device *d, Function f, ProcessKind kind, unsigned *count, ProcessInfo *out)
{
    Ret r = enter_device(d, f);
    if (r == OK && (!count || (*count > 0 && !out)))
        r = INVALID_ARGUMENT;
    if (r == OK) {
        unsigned room = *count;
        *count = list_processes(d, kind, out, room);
        r = *count > room ? INSUFFICIENT_SIZE : OK;
    }
    return leave(r);
}

#define PROCESS_GETTER(SYMBOL, FUNCTION, KIND) \
    Ret SYMBOL(Device *d, unsigned *count, ProcessInfo *out) \
    { \
        return running_processes(d, F_##FUNCTION, KIND, count, out); \
    }
PROCESS_GETTER(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses, COMPUTE)
PROCESS_GETTER(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses, COMPUTE)
PROCESS_GETTER(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
PROCESS_GETTER(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
PROCESS_GETTER(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses, MPS)
PROCESS_GETTER(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses, MPS)

/* One sample per process of the newest utilisation sample, shared out evenly. */
Ret nvmlDeviceGetProcessUtilization(Device *d, ProcessSample *out, unsigned *count, unsigned long long last_seen)
{
    Ret r = enter_device(d, F_nvmlDeviceGetProcessUtilization);
    if (r == OK && !count)
        r = INVALID_ARGUMENT;
    if (r == OK && (d->mig >= 0 || settings_of(d)->migs > 0))
        r = NOT_SUPPORTED;
    if (r != OK)
        return leave(r);
    const Settings *s = settings_of(d);
    unsigned long long now = newest_sample_time(&util_samples);
    unsigned room = out ? *count : 0, available = now > last_seen ? (unsigned)s->process_count : 0;
    *count = available;
    if (available == 0)
        return leave(NOT_FOUND);
    if (room < available)
        return leave(INSUFFICIENT_SIZE);
    unsigned sm = to_uint(reading(d, "UtilizationRates.gpu")) / available;
    for (unsigned i = 0; i < available; i++)
        out[i] = (ProcessSample){s->processes[i].pid, now, sm, sm / 2, 0, 0};
    return leave(OK);
}

/* --- field values --- */

enum Scope { NO_SCOPE, LINK, LINK_OR_ALL };

/* The fields that an H200 has: value type, scope and value. */
static const struct FieldKind {
    unsigned id, type;
    enum Scope scope;
    double value;
} field_kinds[] = {
    {74, TYPE_ULL, NO_SCOPE, 0},  /* violation time, power, ns */
    {75, TYPE_ULL, NO_SCOPE, 0},  /* … heat */
    {76, TYPE_ULL, NO_SCOPE, 0},  /* … boost in step with others */
    {77, TYPE_ULL, NO_SCOPE, 0},  /* … board limit */
    {78, TYPE_ULL, NO_SCOPE, 0},  /* … low utilisation */
    {79, TYPE_ULL, NO_SCOPE, 0},  /* … reliability */
    {269, TYPE_ULL, NO_SCOPE, 0}, /* … software thermal slowdown */
    {270, TYPE_ULL, NO_SCOPE, 0}, /* … hardware thermal slowdown */
    {271, TYPE_ULL, NO_SCOPE, 0}, /* … power brake */
    {82, TYPE_UINT, NO_SCOPE, 41}, /* memory temperature */
    {91, TYPE_UINT, NO_SCOPE, MAX_LINKS},
    {138, TYPE_ULL, LINK_OR_ALL, 0}, /* NVLink data, KiB */
    {139, TYPE_ULL, LINK_OR_ALL, 0},
    {161, TYPE_UINT, LINK, 0}, /* NVLink errors */
    {162, TYPE_UINT, LINK, 0},
    {163, TYPE_UINT, LINK, 0},
    {164, TYPE_UINT, LINK, 26562}, /* NVLink speed, MB/s */
    {165, TYPE_UINT, LINK, 1}, /* NVLink state */
    {186, TYPE_UINT, NO_SCOPE, 70000}, /* power now, mW */
    {230, TYPE_UINT, NO_SCOPE, 0}, /* recovery action */
};

static const struct FieldKind *find_field_kind(unsigned id)
{
    for (size_t i = 0; i < sizeof field_kinds / sizeof field_kinds[0]; i++)
        if (field_kinds[i].id == id)
            return &field_kinds[i];
    return NULL;
}

/* The last line for exactly this scope, else the last one for any. */
static const Field *find_field(const Settings *s, unsigned id, unsigned scope)
{
    const Field *exact = NULL, *any = NULL;
    for (int i = 0; i < s->field_count; i++) {
        const Field *f = &s->fields[i];
        if (f->id == id && f->any_scope)
            any = f;
        else if (f->id == id && f->scope == scope)
            exact = f;
    }
    return exact ? exact : any;
}

static bool scope_allowed(const struct FieldKind *kind, unsigned scope)
{
    return kind->scope == NO_SCOPE || scope < MAX_LINKS || (kind->scope == LINK_OR_ALL && scope == ANY_ID);
}

static void store_value(FieldValue *v, unsigned type, double value)
{
    v->type = type;
    memset(&v->value, 0, sizeof v->value);
    if (type == TYPE_DOUBLE)
        v->value.d = value;
    else if (type == TYPE_UINT)
        v->value.ui = to_uint(value);
    else
        v->value.ull = to_ull(value);
}

static void fill_field(const Device *d, FieldValue *v)
{
    const Field *said = find_field(settings_of(d), v->id, v->scope);
    const struct FieldKind *kind = find_field_kind(v->id);
    if (said && said->left)
        return;
    v->timestamp = (int64_t)microseconds_now();
    v->latency = 5;
    v->result = OK;
    if (said && said->fail != OK)
        v->result = said->fail;
    else if (said)
        store_value(v, said->is_double ? TYPE_DOUBLE : kind ? kind->type : TYPE_ULL, number_now(said->value));
    else if (!kind || d->mig >= 0)
        v->result = NOT_SUPPORTED;
    else if (!scope_allowed(kind, v->scope))
        v->result = INVALID_ARGUMENT;
    else
        store_value(v, kind->type, kind->value);
}

Ret nvmlDeviceGetFieldValues(Device *d, int count, FieldValue *values)
{
    Ret r = enter_device(d, F_nvmlDeviceGetFieldValues);
    if (r == OK && (count <= 0 || !values))
        r = INVALID_ARGUMENT;
    for (int i = 0; r == OK && i < count; i++)
        fill_field(d, &values[i]);
    return leave(r);
}

/* --- sample buffers --- */

/* How many samples of the buffer are newer than last_seen. */
static unsigned samples_after(const SampleKind *kind, unsigned long long last_seen)
{
    unsigned long long newest = newest_sample_time(kind);
    if (newest <= last_seen)
        return 0;
    unsigned long long steps = (newest - last_seen + kind->step_us - 1) / kind->step_us;
    return steps < kind->depth ? (unsigned)steps : kind->depth;
}

static void fill_samples(const SampleKind *kind, const History *h, unsigned available, unsigned count, Sample *out)
{
    unsigned long long first = newest_sample_time(kind) - (available - 1) * kind->step_us;
    for (unsigned i = 0; i < count; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].timestamp = first + i * kind->step_us;
        out[i].value.ui = sample_at(kind, h, out[i].timestamp);
    }
}

static Ret get_samples(const Device *d, unsigned type, unsigned long long last_seen, unsigned *count, Sample *out)
{
    const SampleKind *kind = type == 0 ? &power_samples : &util_samples;
    const History *h = type == 0 ? &past_of(d)->power : &past_of(d)->util;
    if (type > 1 || d->mig >= 0 || (type == 1 && settings_of(d)->migs > 0))
        return NOT_SUPPORTED;
    unsigned available = samples_after(kind, last_seen);
    if (available == 0)
        return NOT_FOUND;
    if (*count > available)
        *count = available;
    fill_samples(kind, h, available, *count, out);
    return OK;
}

Ret nvmlDeviceGetSamples(Device *d, unsigned type, unsigned long long last_seen, unsigned *value_type,
                         unsigned *count, Sample *out)
{
    Ret r = enter_device(d, F_nvmlDeviceGetSamples);
    if (r == OK && !(value_type && count && out))
        r = INVALID_ARGUMENT;
    if (r == OK) {
        *value_type = TYPE_UINT;
        r = get_samples(d, type, last_seen, count, out);
    }
    return leave(r);
}

/* --- GPM --- */

#ifndef OLD_DRIVER

typedef struct {
    const Device *device; /* NULL until a sample is taken */
    double time;
} GpmSample;

static int gpm_sample_count;

typedef struct {
    const char *short_name, *long_name, *unit;
} GpmInfo;

typedef struct {
    unsigned id;
    Ret result;
    double value;
    GpmInfo info;
} GpmMetric;

typedef struct {
    unsigned version, count;
    GpmSample *sample1, *sample2;
    GpmMetric metrics[GPM_IDS];
} GpmMetrics;

typedef struct {
    unsigned version, supported;
} GpmSupport;

Ret nvmlGpmSampleAlloc(GpmSample **out)
{
    Ret r = enter(F_nvmlGpmSampleAlloc);
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK && (gpm_sample_count == MAX_ALLOCATED || !(*out = calloc(1, sizeof **out))))
        r = NO_MEMORY;
    gpm_sample_count += r == OK;
    return leave(r);
}

static Ret take_sample(const Device *d, GpmSample *sample)
{
    if (!sample)
        return INVALID_ARGUMENT;
    if (!parent_settings(d)->gpm_support)
        return NOT_SUPPORTED;
    sample->device = d;
    sample->time = monotonic();
    return OK;
}

Ret nvmlGpmSampleGet(Device *d, GpmSample *sample)
{
    Ret r = enter_device(d, F_nvmlGpmSampleGet);
    if (r == OK)
        r = take_sample(d, sample);
    return leave(r);
}

Ret nvmlGpmMigSampleGet(Device *d, unsigned gpu_instance, GpmSample *sample)
{
    Ret r = enter_device(d, F_nvmlGpmMigSampleGet);
    if (r == OK && (d->mig >= 0 || gpu_instance == 0 || gpu_instance > (unsigned)settings_of(d)->migs))
        r = INVALID_ARGUMENT;
    if (r == OK)
        r = judge(&devices[d->gpu][gpu_instance], F_nvmlGpmMigSampleGet);
    if (r == OK)
        r = take_sample(&devices[d->gpu][gpu_instance], sample);
    return leave(r);
}

static bool gpm_on_h200(unsigned id)
{
    return (id >= 1 && id <= 13) || id == 20 || id == 21 || (id >= 30 && id <= 37) || (id >= 40 && id <= 47) ||
           id == 50 || (id >= 60 && id < 62 + 2 * MAX_LINKS);
}

static void fill_metric(const GpmMetrics *m, GpmMetric *metric)
{
    const Device *d = m->sample2->device;
    const GpmLevel *level = metric->id < GPM_IDS ? &settings_of(d)->gpm[metric->id] : NULL;
    metric->value = 0;
    metric->info = (GpmInfo){"fake", "a metric of the fake driver", "%"};
    if (!level || (!level->listed && metric->id >= GPM_FIRST_UNSUPPORTED) || metric->id == 0)
        metric->result = INVALID_ARGUMENT;
    else if (level->listed ? level->fail != OK : !gpm_on_h200(metric->id))
        metric->result = level->listed ? level->fail : NOT_SUPPORTED;
    else {
        metric->result = OK;
        metric->value = history_mean(&past_of(d)->gpm[metric->id], m->sample1->time, m->sample2->time);
    }
}

static bool names_unknown_metric(const GpmMetrics *m)
{
    const Settings *s = settings_of(m->sample2->device);
    for (unsigned i = 0; i < m->count; i++)
        if (m->metrics[i].id < GPM_IDS && s->gpm[m->metrics[i].id].unknown)
            return true;
    return false;
}

static Ret check_metrics(const GpmMetrics *m)
{
    if (!m)
        return INVALID_ARGUMENT;
    if (m->version != GPM_STRUCT_VERSION)
        return VERSION_MISMATCH;
    const GpmSample *a = m->sample1, *b = m->sample2;
    if (!a || !b || !a->device || a->device != b->device || b->time <= a->time)
        return INVALID_ARGUMENT;
    if (m->count == 0 || m->count > GPM_IDS)
        return INVALID_ARGUMENT;
    return OK;
}

Ret nvmlGpmMetricsGet(GpmMetrics *m)
{
    Ret r = enter(F_nvmlGpmMetricsGet);
    if (r == OK)
        r = check_metrics(m);
    if (r == OK)
        r = judge(m->sample2->device, F_nvmlGpmMetricsGet);
    if (r == OK && names_unknown_metric(m))
        r = INVALID_ARGUMENT;
    for (unsigned i = 0; r == OK && i < m->count; i++)
        fill_metric(m, &m->metrics[i]);
    return leave(r);
}

Ret nvmlGpmQueryDeviceSupport(Device *d, GpmSupport *support)
{
    Ret r = enter_device(d, F_nvmlGpmQueryDeviceSupport);
    if (r == OK && !support)
        r = INVALID_ARGUMENT;
    if (r == OK && support->version != GPM_STRUCT_VERSION)
        r = VERSION_MISMATCH;
    if (r == OK)
        support->supported = parent_settings(d)->gpm_support;
    return leave(r);
}

#endif /* OLD_DRIVER */

/* --- events --- */

static bool known_event_set(const EventSet *set)
{
    const EventSet *known = event_sets;
    while (known && known != set)
        known = known->next;
    return known;
}

Ret nvmlEventSetCreate(EventSet **out)
{
    Ret r = enter(F_nvmlEventSetCreate);
    EventSet *set = NULL;
    if (r == OK && !out)
        r = INVALID_ARGUMENT;
    if (r == OK && (event_set_count == MAX_ALLOCATED || !(set = calloc(1, sizeof *set))))
        r = NO_MEMORY;
    if (r == OK) {
        event_set_count++;
        set->next = event_sets;
        *out = event_sets = set;
    }
    return leave(r);
}

Ret nvmlDeviceRegisterEvents(Device *d, unsigned long long types, EventSet *set)
{
    Ret r = enter_device(d, F_nvmlDeviceRegisterEvents);
    if (r == OK && !known_event_set(set))
        r = INVALID_ARGUMENT;
    if (r == OK && d->mig >= 0)
        r = NOT_SUPPORTED;
    if (r == OK)
        set->types[d->gpu] |= types;
    return leave(r);
}

static void take_event(EventSet *set, EventData *out)
{
    *out = set->queue[0];
    set->queued--;
    memmove(set->queue, set->queue + 1, (size_t)set->queued * sizeof set->queue[0]);
}

/* The program never waits: its timeout is 0. */
Ret nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms)
{
    Ret r = enter(F_nvmlEventSetWait);
    if (r == OK && (!out || timeout_ms != 0 || !known_event_set(set)))
        r = INVALID_ARGUMENT;
    if (r == OK)
        r = config.system;
    if (r == OK && set->queued == 0)
        r = TIMEOUT;
    if (r == OK)
        take_event(set, out);
    return leave(r);
}

#ifndef OLD_DRIVER

Ret nvmlEventSetRegisterGpuOperationalEvents_v1(EventSet *set, const OperationalConfig *wanted)
{
    Ret r = enter(F_nvmlEventSetRegisterGpuOperationalEvents);
    int gpu = -1;
    if (r == OK && (!wanted || !known_event_set(set)))
        r = INVALID_ARGUMENT;
    for (int g = 0; r == OK && g < MAX_GPUS; g++) {
        char own[96];
        uuid_of(&devices[g][0], own, sizeof own);
        if (strncmp(own, wanted->uuid, sizeof own) == 0)
            gpu = g;
    }
    if (r == OK && gpu < 0)
        r = NOT_FOUND;
    if (r == OK) {
        set->operational[gpu] = true;
        set->min_severity[gpu] = wanted->min_severity;
    }
    return leave(r);
}

Ret nvmlEventSetWait_v3(EventSet *set, WaitV3 *out)
{
    Ret r = enter(F_nvmlEventSetWait);
    if (r == OK && (!out || out->timeout_ms != 0 || !known_event_set(set)))
        r = INVALID_ARGUMENT;
    if (r == OK)
        r = config.system;
    if (r == OK && set->told_count == 0)
        r = TIMEOUT;
    if (r == OK) {
        set->last = set->told[0];
        set->told_count--;
        memmove(set->told, set->told + 1, (size_t)set->told_count * sizeof set->told[0]);
        *out = set->last.event;
        uuid_of(&devices[set->last.gpu][0], out->uuid, sizeof out->uuid);
    }
    return leave(r);
}

Ret nvmlEventSetGetContextCount_v1(EventSet *set, unsigned *count)
{
    Ret r = enter(F_nvmlEventSetGetContextCount);
    if (r == OK && (!count || !known_event_set(set)))
        r = INVALID_ARGUMENT;
    if (r == OK)
        *count = set->last.xid ? 2 : 1;
    return leave(r);
}

/* The first context is of a kind of its own, the second the XID. */
Ret nvmlEventSetGetContextInfo_v1(EventSet *set, ContextInfo *info)
{
    Ret r = enter(F_nvmlEventSetGetContextInfo);
    if (r == OK && (!info || !known_event_set(set) || info->index > (set->last.xid ? 1u : 0u)))
        r = INVALID_ARGUMENT;
    if (r == OK) {
        info->type = info->index;
        info->size = sizeof(unsigned);
        info->version = 1;
    }
    return leave(r);
}

Ret nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1(EventSet *set, LegacyXid *xid)
{
    Ret r = enter(F_nvmlEventSetGetGpuOperationalEventContextLegacyXid);
    if (r == OK && (!xid || !known_event_set(set) || xid->index != 1 || !set->last.xid))
        r = INVALID_ARGUMENT;
    if (r == OK)
        xid->xid = set->last.xid;
    return leave(r);
}

#endif /* OLD_DRIVER */
