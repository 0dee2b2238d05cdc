package main

import "svcctl.io/svcctl/cmd/svcctl/output"

// count is "1 problem" or "2 problems".
func count(n int, noun string) string { return output.Count(n, noun) }
