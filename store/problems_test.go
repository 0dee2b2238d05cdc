package store

import "testing"

// Test885_problems_are_collected_once: problems are collected again after a change alone, and callers have their own copies.
func Test885_problems_are_collected_once(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: LoadBalancer, loadBalancerIP: 203.0.113.1}")
	first := b.s.Problems()
	known := b.s.problems.Load()
	if len(first) != 1 || known == nil {
		t.Fatalf("problems %v, kept %v", first, known)
	}
	first[0].Message = "another"
	if b.s.Problems()[0].Message == "another" || b.s.problems.Load() != known {
		t.Error("without a change they are collected again, or are the caller's to change")
	}
	b.apply("a.yaml", "web {}")
	b.wantProblems()
}
