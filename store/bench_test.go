package store

import (
	"fmt"
	"testing"

	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
)

// manyServices are n Services as a client sends them.
func manyServices(n int) []Write {
	writes := make([]Write, n)
	for i := range writes {
		name := fmt.Sprint("svc-", i)
		svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore}}
		svc.Metadata.Namespace, svc.Metadata.Name = "default", name
		svc.Spec.Selector = map[string]string{"app": name}
		svc.Spec.Ports = []object.ServicePort{{Port: 80, TargetPort: object.FromInt(8080)}}
		writes[i] = write(svc)
	}
	return writes
}

// filled is a store with n Services of the API, over the engine of a name.
func filled(b *testing.B, engine string, n int) *box {
	b.Helper()
	bx := newBox(b, wideRange)
	if engine == "file" {
		s, err := Open(mustOpenFile(b, b.TempDir()), bx.cfg)
		if err != nil {
			b.Fatal(err)
		}
		bx.s = s
	}
	if _, err := bx.s.Write(manyServices(n)...); err != nil {
		b.Fatal(err)
	}
	return bx
}

// BenchmarkWriteOne is one label changed of one of 10,000 Services.
func BenchmarkWriteOne(b *testing.B) {
	for _, engine := range []string{"memory", "file"} {
		b.Run(engine, func(b *testing.B) {
			bx := filled(b, engine, 10_000)
			w := manyServices(8)[7]
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				w.Object.GetMeta().Labels = map[string]string{"v": fmt.Sprint(i)}
				i++
				if results, err := bx.s.Write(w); err != nil || results[0].Err != nil {
					b.Fatal(results, err)
				}
			}
		})
	}
}

// BenchmarkWriteParallel is BenchmarkWriteOne by 16 at the same time, who share commits.
func BenchmarkWriteParallel(b *testing.B) {
	bx := filled(b, "file", 10_000)
	b.SetParallelism(8)
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		w := manyServices(1)[0]
		for i := 0; p.Next(); i++ {
			w.Object.GetMeta().Labels = map[string]string{"v": fmt.Sprint(i)}
			if results, err := bx.s.Write(w); err != nil || results[0].Err != nil {
				b.Fatal(results, err)
			}
		}
	})
}

// BenchmarkWriteBatch is 10,000 new Services in one call.
func BenchmarkWriteBatch(b *testing.B) {
	for _, engine := range []string{"memory", "file"} {
		b.Run(engine, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				filled(b, engine, 10_000)
			}
		})
	}
}

// BenchmarkList is all of 10,000 Services, after a change of one of them and without.
func BenchmarkList(b *testing.B) {
	bx := filled(b, "memory", 10_000)
	list := func() {
		if list, _, err := bx.s.List(object.KindService, "", 0); err != nil || len(list) != 10_000 {
			b.Fatal(len(list), err)
		}
	}
	b.Run("same", func(b *testing.B) {
		for b.Loop() {
			list()
		}
	})
	b.Run("changed", func(b *testing.B) {
		for b.Loop() {
			bx.s.table.lists.touch(ref("svc-7"))
			list()
		}
	})
	b.Run("past", func(b *testing.B) {
		at := bx.s.Revision() - 5000
		for b.Loop() {
			if list, _, err := bx.s.List(object.KindService, "", at); err != nil || len(list) != 5000 {
				b.Fatal(len(list), err)
			}
		}
	})
}

// BenchmarkEvents is the last 100 changes, as a watcher reads them that follows closely, and
// 100 of which the old versions are only known as JSON.
func BenchmarkEvents(b *testing.B) {
	bx := filled(b, "memory", 1)
	w := manyServices(1)[0]
	for i := range 3 * journal.DefaultBounds().Recent {
		w.Object.GetMeta().Labels = map[string]string{"v": fmt.Sprint(i)}
		bx.ask(w)
	}
	for name, from := range map[string]uint64{"recent": bx.s.Revision() - 100, "past": bx.s.feed.journal.Since() + 10} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if events, err := bx.s.Events(from, 100); err != nil || len(events) != 100 {
					b.Fatal(len(events), err)
				}
			}
		})
	}
}
