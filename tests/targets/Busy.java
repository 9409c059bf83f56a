/**
 * The commands of serve.h for Java: threads with exceptions and locks, compiled while they run, and
 * a heap that is collected.
 */
class Busy {
    static final class Box {
        int value = 7;
        Box next;
    }

    /** Null pointers, wrong types and a lock, in a loop that is soon compiled. */
    static long exceptions(long n) {
        Box end = new Box();
        Box start = new Box();
        start.next = end;
        long sum = 0;
        for (long i = 0; i < n; i++) {
            for (int j = 0; j < 500; j++) {
                sum += start.next.value;
            }
            try {
                sum += end.next.value;
            } catch (NullPointerException e) {
                sum++;
            }
            try {
                Object text = "text" + i;
                sum += (Integer) text;
            } catch (ClassCastException e) {
                sum += 2;
            }
            synchronized (start) {
                sum += new int[1000].length;
            }
        }
        return sum;
    }

    static long collect() {
        var kept = new java.util.ArrayList<byte[]>();
        for (int i = 0; i < 1000; i++) {
            kept.add(new byte[1000]);
            if (i % 250 == 0) {
                System.gc();
            }
        }
        return kept.size();
    }

    static long run(long n) throws InterruptedException {
        long[] results = new long[3];
        Thread[] threads = new Thread[results.length];
        for (int i = 0; i < threads.length; i++) {
            int own = i;
            threads[i] = new Thread(() -> results[own] = exceptions(n) + collect());
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return java.util.Arrays.stream(results).sum();
    }

    public static void main(String[] args) throws InterruptedException {
        if (args.length > 1) {
            System.out.println(run(Long.parseLong(args[1])));
            return;
        }
        var in = new java.util.Scanner(System.in);
        System.out.println("ready");
        while (in.hasNext()) {
            in.next();
            System.out.println(run(in.nextLong()));
        }
    }
}
