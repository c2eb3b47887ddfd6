/* A plugin EP that reads context binaries through the application's callback, or else compiles weightless contexts.
 *
 * With the callback, it runs models of one EPContext node: y = x + the last numbers of the context. Without the
 * callback, it compiles and runs models of one node Add: y = x + w. ONNX Runtime passes the weights w as an input.
 *
 * ONNX Runtime's wheel has no headers, so this file calls functions by their positions in ONNX Runtime's tables. Releases
 * only append to these tables.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 31 /* of ONNX Runtime's API: the first with GetEpContextDataSupport */
#define NAME "ContosoExecutionProvider"
#define MAX_NAME 1024
#define INPUTS 2 /* x and w */

typedef void Status;
typedef Status *(*Read)(void *state, const char *name, void *allocator, void **data, size_t *size);
typedef void *(*Function)();

static Function *ort, *ep_api, *editor_api;

enum Api { /* positions in OrtApi */
    GET_TENSOR_DATA = 51, GET_ELEMENT_COUNT = 64, GET_TENSOR_INFO = 65, FREE = 76, GET_ALLOCATOR = 78, GET_INPUT = 90, GET_OUTPUT = 91,
    RELEASE_TENSOR_INFO = 99, CREATE_ATTRIBUTE = 211, READ_ATTRIBUTE = 272, GET_VALUE_NAME = 289, GET_EDITOR_API = 291, DEVICE_TYPE = 307,
    GET_EP_API = 317, NODE_COUNT = 344, GET_NODES = 345, GET_NODE_NAME = 349, GET_OPERATOR = 350, GET_INPUTS = 354,
    GET_OUTPUTS = 356, GET_ATTRIBUTE = 361
};
enum EditorApi { /* positions in OrtModelEditorApi */
    CREATE_NODE = 6
};
enum EpApi { /* positions in OrtEpApi */
    CREATE_DEVICE = 0, ADD_NODES = 2, GET_CONFIG = 74, RELEASE_CONFIG = 75, GET_READ = 76
};
enum { STRING = 5, INTEGER = 1 }; /* OrtOpAttrType */
enum { EXTERNAL_ONLY = 1 }; /* OrtWeightlessSupport */

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
    void *x, *w, *y, *info;
    float *from, *added = node->data, *to;
    size_t count;
    TRY(ort[GET_INPUT](context, (size_t)0, &x));
    TRY(ort[GET_TENSOR_INFO](x, &info));
    TRY(ort[GET_ELEMENT_COUNT](info, &count));
    ort[RELEASE_TENSOR_INFO](info);
    int64_t size = (int64_t)count;
    TRY(ort[GET_OUTPUT](context, (size_t)0, &size, (size_t)1, &y));
    TRY(ort[GET_TENSOR_DATA](x, &from));
    TRY(ort[GET_TENSOR_DATA](y, &to));
    if (added == NULL) {
        TRY(ort[GET_INPUT](context, (size_t)1, &w));
        TRY(ort[GET_TENSOR_DATA](w, &added));
    } else
        added += node->count - count;
    for (size_t i = 0; i < count; i++) to[i] = from[i] + added[i];
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

static Status *read_context(Ep *ep, const void *node, void **data, size_t *size, void **allocator) {
    const void *attribute;
    char name[MAX_NAME] = "";
    size_t length;
    TRY(ort[GET_ATTRIBUTE](node, "ep_cache_context", &attribute));
    TRY(ort[READ_ATTRIBUTE](attribute, STRING, name, sizeof name - 1, &length));
    TRY(ort[GET_ALLOCATOR](allocator));
    return ep->read(ep->state, name, *allocator, data, size);
}

/* Create the EPContext node of a compiled node. Its weights are the second input. */
static Status *write_context(const void *fused, void **made) {
    const char *name, *inputs[INPUTS], *output, *content = "add the weights";
    const void *values[INPUTS], *result;
    int64_t yes = 1;
    void *attributes[4];
    TRY(ort[GET_NODE_NAME](fused, &name));
    TRY(ort[GET_INPUTS](fused, values, (size_t)INPUTS));
    for (int i = 0; i < INPUTS; i++) TRY(ort[GET_VALUE_NAME](values[i], &inputs[i]));
    TRY(ort[GET_OUTPUTS](fused, &result, (size_t)1));
    TRY(ort[GET_VALUE_NAME](result, &output));
    TRY(ort[CREATE_ATTRIBUTE]("source", NAME, (int)strlen(NAME), STRING, &attributes[0]));
    TRY(ort[CREATE_ATTRIBUTE]("ep_cache_context", content, (int)strlen(content), STRING, &attributes[1]));
    TRY(ort[CREATE_ATTRIBUTE]("main_context", &yes, 1, INTEGER, &attributes[2]));
    TRY(ort[CREATE_ATTRIBUTE]("embed_mode", &yes, 1, INTEGER, &attributes[3]));
    return editor_api[CREATE_NODE]("EPContext", "com.microsoft", name, inputs, (size_t)INPUTS, &output, (size_t)1, attributes, (size_t)4, made);
}

static Status *compile(Ep *ep, const void **graphs, const void **fused, size_t count, Node **made, void **contexts) {
    for (size_t i = 0; i < count; i++) {
        const void *node;
        const char *operator;
        size_t size = 0;
        void *data = NULL, *allocator = NULL;
        TRY(ort[GET_NODES](graphs[i], &node, (size_t)1));
        TRY(ort[GET_OPERATOR](node, &operator));
        if (ep->read != NULL) TRY(read_context(ep, node, &data, &size, &allocator));
        else if (strcmp(operator, "EPContext") != 0) TRY(write_context(fused[i], &contexts[i]));
        made[i] = calloc(1, sizeof **made);
        *made[i] = (Node){VERSION, (Function)create_state, (Function)compute, (Function)release_state, data, size / sizeof(float),
                           allocator};
    }
    return NULL;
}

static void release_nodes(Ep *ep, Node **nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (nodes[i]->data != NULL) ort[FREE](nodes[i]->allocator, nodes[i]->data);
        free(nodes[i]);
    }
}

static Status *get_weightless_support(const Ep *ep, int *support) { *support = EXTERNAL_ONLY; return NULL; }
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
    ep->members[24] = (Function)get_weightless_support;
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
    editor_api = (Function *)ort[GET_EDITOR_API]();
    factories[0] = &factory;
    *count = 1;
    return NULL;
}

Status *ReleaseEpFactory(void *made) { return NULL; }
