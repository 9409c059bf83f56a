/** Null pointers that the virtual machine notices by a fault in compiled code, and divisions by zero. */
class Nulls {
    static final class Box {
        int value = 7;
        Box next;
    }

    static int load(Box box) {
        return box.next.value;
    }

    static int divide(int a, int b) {
        return a / b;
    }

    /** Null pointers are so rare that the compiler leaves them to the fault, but never gives the code up. */
    static long run(long n) {
        Box end = new Box();
        Box start = new Box();
        start.next = end;
        long good = 0;
        long sum = 0;
        for (long i = 0; i < n; i++) {
            for (int j = 0; j < 2000; j++) {
                sum += load(start);
            }
            try {
                sum += load(end);
            } catch (NullPointerException e) {
                good++;
            }
            try {
                sum += divide(7, (int) (i - i));
            } catch (ArithmeticException e) {
                good++;
            }
        }
        return sum == n * 2000 * 7 ? good : -good;
    }

    public static void main(String[] args) {
        var in = new java.util.Scanner(System.in);
        System.out.println("ready");
        while (in.hasNext()) {
            in.next();
            System.out.println(run(in.nextLong()));
        }
    }
}
