// Goroutines that say who they are.
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
)

// own is the number that the runtime prints of the running goroutine.
func own() int64 {
	var buffer [64]byte
	words := bytes.Fields(buffer[:runtime.Stack(buffer[:], false)])
	number, _ := strconv.ParseInt(string(words[1]), 10, 64)
	return number
}

//go:noinline
func visit(number int64) int64 { return number + 1 }

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	var group sync.WaitGroup
	for i := 0; i < count; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for j := 0; j < 50; j++ {
				visit(own())
				runtime.Gosched()
			}
		}()
	}
	group.Wait()
	fmt.Println(visit(own()))
}
