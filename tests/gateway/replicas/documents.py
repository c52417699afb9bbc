"""What each engine answers, byte for byte as it is documented: metrics, old and new, and errors."""

from __future__ import annotations

VLLM_NEW = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 4000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 700.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 5.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 99.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 100.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 3.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 10.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 0.5
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a}b,c",waiting_lora_adapters=""} 1.7e+09
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="2000",prefix="a\\"}b"} 1.0
"""
VLLM_OLD = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:num_preemptions{model_name="m"} 7.0
vllm:prompt_tokens{model_name="m"} 12.0
vllm:generation_tokens{model_name="m"} 34.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 1.5
vllm:time_per_output_token_seconds_count{model_name="m"} 50.0
"""
SGLANG = b"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.1
sglang:cache_hit_rate{model_name="m"} 0.3
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.0
sglang:time_to_first_token_seconds_count{model_name="m"} 4.0
sglang:inter_token_latency_seconds_sum{model_name="m"} 1.0
sglang:inter_token_latency_seconds_count{model_name="m"} 50.0
sglang:queue_time_seconds_sum{model_name="m"} 0.4
sglang:queue_time_seconds_count{model_name="m"} 4.0
sglang:prompt_tokens_total{model_name="m"} 800.0
sglang:generation_tokens_total{model_name="m"} 90.0
sglang:cached_tokens_total{model_name="m"} 200.0
sglang:num_retracted_requests_total{model_name="m"} 2.0
sglang:cache_config_info{model_name="m",num_pages="500",page_size="1"} 1.0
"""
TENSORRT_LLM = b"""\
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{model_name="m"} 5.0
trtllm_num_requests_waiting{model_name="m"} 6.0
trtllm_kv_cache_utilization{model_name="m"} 0.75
trtllm_kv_cache_max_blocks{model_name="m"} 400.0
trtllm_kv_cache_free_blocks{model_name="m"} 100.0
trtllm_kv_cache_used_blocks{model_name="m"} 300.0
trtllm_kv_cache_tokens_per_block{model_name="m"} 32.0
trtllm_kv_cache_hit_rate{model_name="m"} 0.4
trtllm_time_to_first_token_seconds_sum{model_name="m"} 1.0
trtllm_time_to_first_token_seconds_count{model_name="m"} 5.0
trtllm_time_per_output_token_seconds_sum{model_name="m"} 0.2
trtllm_time_per_output_token_seconds_count{model_name="m"} 10.0
trtllm_request_queue_time_seconds_sum{model_name="m"} 0.1
trtllm_request_queue_time_seconds_count{model_name="m"} 5.0
trtllm_prompt_tokens_total{model_name="m"} 50.0
trtllm_generation_tokens_total{model_name="m"} 60.0
trtllm_num_paused_requests{model_name="m"} 1.0
"""
TENSORRT_LLM_ITERATIONS = (
    b'[{"iter":1,"numActiveRequests":9,"numQueuedRequests":9},{"iter":2,"numActiveRequests":2,"numQueuedRequests":3,'
    b'"kvCacheStats":{"maxNumBlocks":100,"freeNumBlocks":60,"usedNumBlocks":40,"tokensPerBlock":64,'
    b'"cacheHitRate":0.5}}]'
)
TRITON = b"""\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.2
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
"""
TGI = b"""\
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
tgi_queue_size 7
tgi_batch_current_max_tokens 2000
tgi_batch_max_total_tokens 8000
tgi_request_mean_time_per_token_duration_sum 0.6
tgi_request_mean_time_per_token_duration_count 20
tgi_request_queue_duration_sum 1.0
tgi_request_queue_duration_count 20
tgi_request_input_length_sum 640
tgi_request_input_length_count 20
tgi_request_generated_tokens_sum 320
tgi_request_generated_tokens_count 20
"""
LLAMA_CPP = b"""\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 300
llamacpp:tokens_predicted_total 120
llamacpp:tokens_predicted_seconds_total 2.4
llamacpp:predicted_tokens_seconds 50
llamacpp:requests_processing 1
llamacpp:requests_deferred 3
"""
OPENVINO = b"""\
# TYPE ovms_current_graphs gauge
ovms_current_graphs{name="m"} 3
ovms_current_graphs{name="other"} 1
"""
TANDEM_STATE = (
    b'{"version":"0.1.0","model":"m","runner":"eager","is_ready":true,"is_draining":false,"failure":null,'
    b'"heartbeat_age_s":0.01,"block_size":16,"max_model_len":2048,"max_num_seqs":64,'
    b'"running":{"interactive":2,"batch":1},"waiting":{"interactive":4,"batch":0},"queued_prompt_tokens":900,'
    b'"blocks":{"free":50,"cached":30,"held":20},"slots":{"allocated":320,"empty":20},'
    b'"counters":{"steps":9,"busy_s":1.5,"preemptions":1,"recomputed_tokens":0,"wasted_tokens":0,'
    b'"prefix_queries":100,"prefix_hits":40},"recent_steps":[[0.02,128,3],[0.01,3,3]],"kv_events_sequence":7}'
)

OPENAI_400 = b'{"error":{"message":"bad","type":"invalid_request_error","param":"messages","code":null}}'
VLLM_CONTEXT = (
    b'{"error":{"message":"This model\'s maximum context length is 512 tokens. However, you requested 900 tokens.",'
    b'"type":"BadRequestError","param":"input_tokens","code":400}}'
)
VLLM_OLD_404 = (
    b'{"object":"error","message":"The model `x` does not exist.","type":"NotFoundError","param":null,"code":404}'
)
TENSORRT_FLAT = b'{"object":"error","message":"beam width","type":"BadRequestError","param":null,"code":400}'
TENSORRT_TEXT = b"{\"error\":\"[{'type': 'missing', 'loc': ('body', 'messages')}]\"}"
TGI_OVERLOADED = b'{"error":"Model is overloaded","error_type":"overloaded"}'
TGI_VALIDATION = b'{"error":"`inputs` must have less than 1024 tokens","error_type":"validation"}'
TGI_GENERATION = b'{"error":"Request failed during generation","error_type":"generation"}'
TGI_INCOMPLETE = b'{"error":"Incomplete generation","error_type":"incomplete_generation"}'
LLAMA_LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
LLAMA_CONTEXT = (
    b'{"error":{"code":400,"message":"the request exceeds the available context size","type":'
    b'"exceed_context_size_error","n_prompt_tokens":900,"n_ctx":512}}'
)
SGLANG_EVENT = (
    b'{"error":{"object":"error","message":"out of memory","type":"InternalServerError","param":null,"code":500}}'
)
FASTAPI_422 = b'{"detail":[{"type":"missing","loc":["body","messages"],"msg":"Field required"}]}'
NGINX_502 = b"<html>\r\n<head><title>502 Bad Gateway</title></head></html>"
"""Of a proxy in between."""
