/* A plugin EP that reads context binaries through the application's callback.
 *
 * It runs models of one EPContext node: y = x + the last numbers of the context. ONNX Runtime's wheel has no
 * headers, so this file calls functions by their positions in ONNX Runtime's tables. Releases only append to these tables.
 */
#include <stdint.h>
#include <stdlib.h>

#define VERSION 31 /* of ONNX Runtime's API: the first with GetEpContextDataSupport */
#define NAME "ContosoExecutionProvider"
#define MAX_NAME 1024

typedef void Status;
typedef Status *(*Read)(void *state, const char *name, void *allocator, void **data, size_t *size);
typedef void *(*Function)();

static Function *ort, *ep_api;

enum Api { /* positions in OrtApi */
    CREATE_STATUS = 0, GET_TENSOR_DATA = 51, GET_ELEMENT_COUNT = 64, GET_TENSOR_INFO = 65, FREE = 76, GET_ALLOCATOR = 78, GET_INPUT = 90, GET_OUTPUT = 91,
    RELEASE_TENSOR_INFO = 99, READ_ATTRIBUTE = 272, DEVICE_TYPE = 307, GET_EP_API = 317, NODE_COUNT = 344, GET_NODES = 345,
    GET_ATTRIBUTE = 361
};
enum EpApi { /* positions in OrtEpApi */
    CREATE_DEVICE = 0, ADD_NODES = 2, GET_CONFIG = 74, RELEASE_CONFIG = 75, GET_READ = 76
};
enum { FAIL = 1 /* OrtErrorCode */, STRING = 5 /* OrtOpAttrType */ };

typedef struct { /* OrtNodeComputeInfo, and the context */
    uint64_t version;
    Function create, compute, release;
    float *data;
    size_t count;
    void *allocator;
} Node;

typedef struct { /* OrtEp, and its callback */
    uint64_t version;
    Function members[26];
    Read read;
    void *state;
} Ep;

#define TRY(call) do { Status *status = (call); if (status) return status; } while (0)

static Status *create_state(Node *node, void *context, void **state) { *state = node; return NULL; }
static void release_state(Node *node, void *state) {}

static Status *compute(Node *node, void *state, void *context) {
    void *x, *y, *info;
    float *from, *to;
    size_t count;
    TRY(ort[GET_INPUT](context, (size_t)0, &x));
    TRY(ort[GET_TENSOR_INFO](x, &info));
    TRY(ort[GET_ELEMENT_COUNT](info, &count));
    ort[RELEASE_TENSOR_INFO](info);
    int64_t size = (int64_t)count;
    TRY(ort[GET_OUTPUT](context, (size_t)0, &size, (size_t)1, &y));
    TRY(ort[GET_TENSOR_DATA](x, &from));
    TRY(ort[GET_TENSOR_DATA](y, &to));
    for (size_t i = 0; i < count; i++) to[i] = from[i] + node->data[node->count - count + i];
    return NULL;
}

static const char *get_name(const void *self) { return NAME; }

static Status *get_capability(Ep *ep, const void *graph, void *support) {
    size_t count;
    TRY(ort[NODE_COUNT](graph, &count));
    const void **nodes = calloc(count, sizeof *nodes);
    TRY(ort[GET_NODES](graph, nodes, count));
    Status *status = ep_api[ADD_NODES](support, nodes, count, NULL);
    free(nodes);
    return status;
}

static Status *compile(Ep *ep, const void **graphs, const void **fused, size_t count, Node **made, void **contexts) {
    if (ep->read == NULL) return ort[CREATE_STATUS](FAIL, "this EP reads contexts only through a callback");
    for (size_t i = 0; i < count; i++) {
        const void *node, *attribute;
        char name[MAX_NAME] = "";
        size_t length, size;
        void *data, *allocator;
        TRY(ort[GET_NODES](graphs[i], &node, (size_t)1));
        TRY(ort[GET_ATTRIBUTE](node, "ep_cache_context", &attribute));
        TRY(ort[READ_ATTRIBUTE](attribute, STRING, name, sizeof name - 1, &length));
        TRY(ort[GET_ALLOCATOR](&allocator));
        TRY(ep->read(ep->state, name, allocator, &data, &size));
        made[i] = calloc(1, sizeof **made);
        *made[i] = (Node){VERSION, (Function)create_state, (Function)compute, (Function)release_state, data, size / sizeof(float),
                           allocator};
    }
    return NULL;
}

static void release_nodes(Ep *ep, Node **nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        ort[FREE](nodes[i]->allocator, nodes[i]->data);
        free(nodes[i]);
    }
}

static Status *get_data_support(const Ep *ep, uint32_t *flags) { *flags = 1; return NULL; }

static Status *create_ep(void *factory, const void *devices, const void *metadata, size_t count, const void *options, const void *logger,
                         Ep **made) {
    void *config;
    size_t limit;
    Ep *ep = calloc(1, sizeof *ep);
    ep->version = VERSION;
    ep->members[0] = (Function)get_name;
    ep->members[1] = (Function)get_capability;
    ep->members[2] = (Function)compile;
    ep->members[3] = (Function)release_nodes;
    ep->members[25] = (Function)get_data_support;
    TRY(ep_api[GET_CONFIG](options, &config));
    TRY(ep_api[GET_READ](config, &ep->read, &ep->state, &limit));
    ep_api[RELEASE_CONFIG](config);
    *made = ep;
    return NULL;
}

static void release_ep(void *factory, Ep *ep) { free(ep); }

static Status *get_devices(void *factory, const void **devices, size_t count, void **made, size_t max, size_t *number) {
    *number = 0;
    for (size_t i = 0; i < count && *number < max; i++)
        if ((int)(intptr_t)ort[DEVICE_TYPE](devices[i]) == 0) /* a CPU */
            TRY(ep_api[CREATE_DEVICE](factory, devices[i], NULL, NULL, &made[(*number)++]));
    return NULL;
}

static uint32_t get_vendor_id(const void *factory) { return 0; }
static const char *get_version(const void *factory) { return "1.0.0"; }
static Status *create_nothing(void *factory, void **made) { *made = NULL; return NULL; }
static Status *create_no_allocator(void *factory, const void *info, const void *options, void **made) { *made = NULL; return NULL; }
static void release_nothing(void *factory, void *made) {}
static _Bool is_stream_aware(const void *factory) { return 0; }

static struct { uint64_t version; Function members[13]; } factory = {23, { /* OrtEpFactory of the API version 23 */
    (Function)get_name, (Function)get_name, (Function)get_devices, (Function)create_ep, (Function)release_ep, (Function)get_vendor_id,
    (Function)get_version, NULL, (Function)create_no_allocator, (Function)release_nothing, (Function)create_nothing,
    (Function)is_stream_aware, NULL}};

Status *CreateEpFactories(const char *name, const Function *base, const void *logger, void **factories, size_t max, size_t *count) {
    ort = ((Function *(*)(uint32_t))base[0])(VERSION);
    ep_api = (Function *)ort[GET_EP_API]();
    factories[0] = &factory;
    *count = 1;
    return NULL;
}

Status *ReleaseEpFactory(void *made) { return NULL; }
