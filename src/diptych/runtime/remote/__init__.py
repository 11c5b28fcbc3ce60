"""Other engines behind our gateway: the disaggregation protocols of vLLM and SGLang, driven exactly."""
